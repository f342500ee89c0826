"""Started by torchrun: several command lines, one after the other, separated by ``//``."""

import sys

import torch

from earthwork.cli.app import run

if __name__ == "__main__":
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    while arguments:
        end = arguments.index("//")
        code = run(arguments[:end])
        if code:
            sys.exit(code)
        arguments = arguments[end + 1 :]
