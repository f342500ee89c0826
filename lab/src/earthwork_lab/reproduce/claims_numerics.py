"""The claims about distances, gradients, stability and time."""

from __future__ import annotations

import itertools
from typing import Any

from earthwork_lab.reproduce.experiment import Results
from earthwork_lab.reproduce.verdicts import Check, Evidence, Finding, difference, exact, shown

_TINY = 1e-9


def _figure_1(results: Results) -> Finding:
    errors = results.summary["largest_error"]
    return Finding((exact("Largest difference of the flows and both gradients", max(errors.values()), "<", _TINY),))


def _multiples(results: Results) -> Finding:
    steps = results.summary["steps_of_gradient_emd"]
    off = max(abs(step - round(step)) for step in steps)
    return Finding(
        (exact("Largest distance of an entry of N·∇EMD from a whole number", off, "<", _TINY),),
        tuple(exact(f"entry {number}", step) for number, step in enumerate(steps, start=1)),
    )


def _conserves(results: Results) -> Finding:
    largest = max(abs(mass) for mass in results.summary["mass_of_gradients"])
    return Finding((exact("Largest absolute sum of the entries of ∇EMD and ∇EMD²", largest, "<", _TINY),))


def _equation(key: str, *evidence: tuple[str, tuple[str, ...], Any, float], remark: str = "") -> Any:
    """A judge that compares entries of the summary's equations: (quantity, path, relation, threshold) each."""

    def judge(results: Results) -> Finding:
        found = results.summary["equations"]
        tests = []
        for quantity, path, relation, threshold in evidence:
            value = found[key]
            for name in path:
                value = value[name]
            tests.append(exact(quantity, value, relation, threshold))
        return Finding(tuple(tests), remark=remark)

    return judge


def _counter(results: Results) -> Finding:
    found = results.summary["equations"]["sinkhorn"]
    return Finding(
        (exact("Sweeps of the printed loop before we stopped it", found["sweeps_made"], "<", found["limit"] + 1),),
        remark="The printed loop never changes its counter.",
    )


def _tree_size(results: Results) -> Finding:
    tree = results.summary["equations"]["tree"]
    return Finding(
        (
            exact("Nodes of our tree", tree["nodes"], "=", 1374),
            exact("its largest distance in unit edges", tree["diameter"], "=", 26),
        ),
        (exact("its largest distance if an edge costs the WordNet edges that it replaces", tree["diameter_in_hops"]),),
        remark="The paper does not publish its tree; this is ours.",
    )


def _smallest_distance(results: Results) -> Finding:
    tree = results.summary["equations"]["tree"]
    return Finding((exact("Smallest distance between two classes of our tree", tree["smallest_distance"], "=", 2),))


def _pairs(results: Results, scale: str, line: str, kind: str, lam: float) -> list[float | None]:
    """One value for each pair of distributions, from the part of one λ."""
    values: list[float | None] = results.parts[f"{scale}, λ = {lam:g}"][line][kind]
    return values


def _nearest(results: Results, lam: float) -> float:
    return float(min(results.settings["lams"], key=lambda value: abs(value - lam)))


def _iterations(results: Results) -> Finding:
    """How far ten iterations are from the reference, at a small and at a large λ."""
    gaps = []
    for lam in (_nearest(results, 1.0), _nearest(results, 10.0)):
        few, many = (_pairs(results, "edges", line, "ratio", lam) for line in ("float64, 10 iterations", "reference"))
        gaps.append([None if a is None or b is None else abs(a - b) for a, b in zip(few, many, strict=True)])
    quantity = "Error of SD / EMD after 10 iterations, λ = 10 minus λ = 1"
    return Finding(
        (difference(quantity, gaps[1], gaps[0], ">"),), (shown("error at λ = 1", gaps[0]), shown("at λ = 10", gaps[1]))
    )


def _float32(results: Results) -> Finding:
    """From which λ Algorithm 1 in float32 is not finite, or more than 5 % away from float64."""
    first = {scale: _first_bad(results, scale) for scale in results.settings["scales"]}
    words = {"edges": "M in edges", "unit": "M divided by its largest entry"}
    largest = max(results.settings["lams"])
    tests = [exact("Smallest λ at which float32 fails, M in edges", first["edges"] or 2 * largest, "<", 10.01)]
    remarks = [
        f"With {words[scale]} float32 is within the tolerance at every λ measured."
        for scale, lam in first.items()
        if lam is None
    ]
    return Finding(tuple(tests), remark=" ".join(remarks))


def _first_bad(results: Results, scale: str) -> float | None:
    limit = max(n for n in results.settings["iterations"] if n <= 100)
    for lam in results.settings["lams"]:
        single, double = (
            _pairs(results, scale, f"{kind}, {limit} iterations", "ratio", lam) for kind in ("float32", "float64")
        )
        if any(
            a is None or (b is not None and abs(a - b) > 0.05 * abs(b)) for a, b in zip(single, double, strict=True)
        ):
            return float(lam)
    return None


def _closer(results: Results) -> Finding:
    """The error of the converged SD must fall from λ to λ, up to the last λ at which it is not finite."""
    lams = results.settings["lams"]
    found = {lam: _pairs(results, "edges", "reference", "ratio", lam) for lam in lams}
    errors = {lam: [abs(v - 1) for v in values if v is not None] for lam, values in found.items() if None not in values}
    finite = list(errors)
    tests = [
        Evidence(
            f"|SD / EMD − 1|, λ = {larger:g} minus λ = {smaller:g}",
            tuple(a - b for a, b in zip(errors[larger], errors[smaller], strict=True)),
            "<",
            0.001,
            digits=4,
        )
        for smaller, larger in itertools.pairwise(finite)
    ]
    missing = [lam for lam in lams if lam not in errors]
    remark = "At the largest λ Algorithm 1 is not finite in float64 either." if missing else ""
    return Finding(tuple(tests), remark=remark)


def _largest_lambda(results: Results) -> Finding:
    """The largest λ, where Algorithm 1 in float64 is not finite, by the same iteration on logarithms."""
    settings = results.settings
    smaller, largest = settings["lams"][-2:]
    errors = {
        lam: [None if v is None else abs(v - 1) for v in _pairs(results, "edges", "log", "ratio", lam)]
        for lam in (smaller, largest)
    }
    failed = sum(value is None for value in _pairs(results, "edges", "reference", "ratio", largest))
    quantity = f"|SD / EMD − 1| in the log domain, float32, λ = {largest:g} minus λ = {smaller:g}"
    return Finding(
        (difference(quantity, errors[largest], errors[smaller], "<", 0.001, digits=4),),
        (
            shown(f"at λ = {largest:g}", errors[largest], 4),
            shown("angle between the gradients in degrees", _pairs(results, "edges", "log", "angle", largest), 0),
            exact("pairs for which Algorithm 1 is NaN there in float64", failed),
        ),
        early=(exact("iterations", settings["log_iterations"], "<", settings["reference"]),),
    )


def _unusable(results: Results) -> Finding:
    """Whether float32 with few iterations has lost the direction of the gradient, or is NaN."""
    lam = _nearest(results, 10.0)
    limits = [limit for limit in results.settings["iterations"] if limit <= 100]
    worst = [_pairs(results, "edges", f"float32, {limit} iterations", "angle", lam) for limit in limits]
    # An angle that is NaN is unusable as well: it counts as a right angle.
    angles = tuple(max(90.0 if value is None else value for value in values) for values in zip(*worst, strict=True))
    log = results.summary["edges"]["log"]["angle"]["mean"]
    stable = all(value is not None for value in log)
    remark = "An angle that is NaN counts as 90. The same iteration on logarithms in float32 is "
    return Finding(
        (Evidence(f"Worst angle to ∇EMD in degrees at λ = {lam:g}, float32", angles, ">", 45.0, digits=0),),
        remark=remark + ("finite at every λ." if stable else "not finite at every λ."),
    )


def _conditions(kind: str, words: str) -> Any:
    def judge(results: Results) -> Finding:
        found = results.summary["conditions"][kind]
        names = list(found)
        small, large = names[0], names[-1]
        quantity = f"|SD / EMD − 1| in float32, {words} {large} minus {small}"
        return Finding(
            (difference(quantity, found[large], found[small], ">", digits=4),),
            tuple(shown(f"{words} {name}", found[name], 4) for name in names),
            remark="A value that is not finite counts as 1." if kind == "by_ratio" else "",
        )

    return judge


def _rough(results: Results) -> Finding:
    rough, reach = results.summary["roughness"], results.summary["reach"]
    return Finding(
        (
            exact("Second differences relative to the gradient, EMD² / EMD", rough["EMD²"] / rough["EMD"], "<", 1),
            exact("EMD / MSE", rough["EMD"] / rough["MSE"], "<", 1),
            exact("bins with over 5 % of the largest entry, EMD / MSE", reach["EMD"] / reach["MSE"], ">", 2),
            exact("EMD² / MSE", reach["EMD²"] / reach["MSE"], ">", 2),
        )
    )


def _sd_resembles(results: Results) -> Finding:
    angles = [(n, angle) for n, angle in results.summary["angle_to_emd"].items() if n.startswith("SD")]
    falls = tuple(
        exact(f"Angle to ∇EMD in degrees, {larger[4:]} minus {smaller[4:]}", b - a, "<", 0)
        for (smaller, a), (larger, b) in itertools.pairwise(angles)
    )
    name, last = angles[-1]
    return Finding((*falls, exact(f"angle at {name[4:]}", last, "<", 5)))


def _sd_asymmetric(results: Results) -> Finding:
    found = results.summary["asymmetry"]
    least = min(value for name, value in found.items() if name.startswith("SD"))
    most = max(value for name, value in found.items() if not name.startswith("SD"))
    quantity = "Change of the gradient's size when p and q are exchanged"
    return Finding((exact(f"{quantity}, least of SD", least, ">", 0.01), exact("most of the others", most, "<", 0.01)))


def _faster(device: str, dtypes: tuple[str, ...], factor: float) -> Any:
    def judge(results: Results) -> Finding:
        tests = []
        for dtype in dtypes:
            sd, ours = (results.parts.get(f"{row}, {device}, {dtype}") for row in ("SD, 100 iterations", "EMD²"))
            if sd and ours:
                ratios = tuple(a / b for a, b in zip(sd["seconds"], ours["seconds"], strict=True))
                quantity = f"Time of SD at 100 iterations / time of EMD², {device}, {dtype}"
                tests.append(Evidence(quantity, ratios, ">", factor, digits=0))
        return Finding(tuple(tests), remark="" if tests else "No such device, or not timed.")

    return judge


def _impractical(results: Results) -> Finding:
    part = results.parts.get("SD, 1000 iterations, cpu, float64")
    if part is None:
        return Finding(remark="1000 iterations were not timed.")
    batch = results.settings["batch"]
    quantity = f"Seconds for a minibatch of {batch}"
    return Finding((Evidence(quantity, tuple(part["seconds"]), ">", 10.0, digits=1),))


_SIGN = (
    "Value of the printed objective at Algorithm 1's plan minus its value at the exact plan",
    ("excess_with_printed_sign",),
    "<",
    0.0,
)
_OTHER_SIGN = "With the other sign of the entropy Algorithm 1's plan has the smaller value."

NUMERICS: tuple[Check, ...] = (
    Check("figure 1", "The flows and gradients printed for the Ellyvan.", "ellyvan", _figure_1),
    Check(
        "equations 1, 2",
        "The EMD is the cheapest transport plan; on chains and trees the closed form gives its cost.",
        "ellyvan",
        lambda results: Finding(
            (
                exact(
                    "Largest difference between a linear programme and the closed forms",
                    results.summary["equations"]["linear_programme_error"],
                    "<",
                    _TINY,
                ),
            )
        ),
    ),
    Check("section 3.2", "With whole edge costs the terms of ∇EMD are multiples of 1/N.", "ellyvan", _multiples),
    Check("section 3.1", "The gradient neither creates nor destroys dirt.", "ellyvan", _conserves),
    Check("section 3.2", "The Hessian of EMD² is as printed, with N·H(i − k) − i.", "ellyvan",
          _equation("hessian", ("Printed matrix / second derivative at N = 4", ("printed_over_true",), "=", 1.0))),
    Check(
        "section 4",
        "The tree gradient is as printed, with an inner sum over j = 1 … i.",
        "ellyvan",
        lambda results: Finding(
            (
                exact(
                    "Largest difference from ∇EMD² in figure 1",
                    results.summary["equations"]["tree_gradient_error"],
                    "<",
                    _TINY,
                ),
            ),
            remark="The sum must be over the leaves below node i.",
        ),
    ),
    Check("section 2.2", "The Sinkhorn distance minimises ⟨M, T⟩ − ⟨T, log T⟩/λ, and Algorithm 1 finds the minimum.",
          "ellyvan", _equation("sinkhorn", _SIGN, remark=_OTHER_SIGN)),
    Check("Algorithm 1", "The loop ends after MAX-ITER iterations.", "ellyvan", _counter),
    Check(
        "Algorithm 1",
        "The printed gradient log(u)/λ conserves dirt.",
        "ellyvan",
        _equation(
            "sinkhorn",
            ("Sum of its entries", ("sum_of_printed_gradient",), "=", 0.0),
            remark="Once centred it does.",
        ),
    ),
    Check("section 5.3", "The tree has 1374 nodes and largest distance 26 with all edge costs 1.", "ellyvan",
          _tree_size),
    Check("section 5.3", "The smallest distance between two labels is 2.", "ellyvan", _smallest_distance),
    Check("figure 2 a, c", "Larger λ need many more iterations to converge.", "stability", _iterations),
    Check("figure 2 b, d", "float32 degenerates for large λ.", "stability", _float32),
    Check("section 2.3", "Larger λ approximate the EMD better (converged, float64).", "stability", _closer),
    Check("figure 2", "The same at λ = 100, the end of the axis.", "stability", _largest_lambda),
    Check("section 2.3", "In float32 with 10 or 100 iterations larger λ are unusable.", "stability", _unusable),
    Check("section 2.3", "SD works best when the output space is small.", "stability",
          _conditions("by_size", "number of bins")),
    Check("section 2.3", "SD works best when the ratio of the largest to the smallest distance is small.",
          "stability", _conditions("by_ratio", "ratio")),
    Check("figure 4 a, b",
          "MSE's gradient is rough and local; EMD's and EMD²'s reach over the whole space, and EMD²'s is smoother.",
          "gradients", _rough),
    Check("figure 4 c", "Larger λ resemble the true EMD; SD at λ = 10 approximates it well.", "gradients",
          _sd_resembles),
    Check("figure 4 c", "The regularised versions are asymmetric.", "gradients", _sd_asymmetric),
    Check("table 1", "EMD² is 60 times faster than 100 iterations of SD on a CPU.", "timing",
          _faster("cpu", ("float64", "float32"), 60.0)),
    Check("table 1", "EMD² is 3.5 times faster than SD on a GPU.", "timing", _faster("cuda", ("float32",), 3.5)),
    Check("table 1", "SD in float64 with 1000 iterations is impractical: 74 s per minibatch.", "timing", _impractical),
)  # fmt: skip
