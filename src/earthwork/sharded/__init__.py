"""Losses and decisions on classes that are sharded over several processes; imported at the first ``DTensor``."""
