"""The claims about distances, gradients, stability and time."""

from __future__ import annotations

import itertools
from typing import Any

from earthwork.lab.reproduce.verdicts import NOT_MEASURABLE, Check, Finding, show, verdict


def _figure_1(summary: Any) -> Finding:
    worst = max(summary["largest_error"].values())
    return f"All flows and both gradients agree; the largest difference is {worst:.0e}.", verdict(worst < 1e-9)


def _quarters(summary: Any) -> Finding:
    steps = summary["steps_of_gradient_emd"]
    text = f"N·∇EMD is {', '.join(f'{step:g}' for step in steps)}: whole numbers."
    return text, verdict(all(abs(step - round(step)) < 1e-9 for step in steps))


def _conserves(summary: Any) -> Finding:
    masses = [abs(mass) for mass in summary["mass_of_gradients"]]
    return f"The entries of ∇EMD and ∇EMD² sum to {max(masses):.0e} at most.", verdict(max(masses) < 1e-9)


def _hessian(summary: Any) -> Finding:
    check = summary["hessian"]
    text = f"The printed matrix is {check['printed_over_true']:g} times the second derivative at N = 4: N² too large."
    return text, verdict(abs(check["printed_over_true"] - 1) < 1e-6)


def _tree_size(_: Any) -> Finding:
    from earthwork import trees

    unit, hops = trees.imagenet1k(rule="paper"), trees.imagenet1k("hops", rule="paper")
    text = (
        f"With {unit.num_nodes} nodes the largest distance is {unit.diameter():g} in unit edges; it is "
        f"{hops.diameter():g} when an edge costs the WordNet edges that it stands for."
    )
    return text, verdict(unit.num_nodes == 1374 and float(unit.diameter()) == 26)


def _at(summary: Any, scale: str, line: str, kind: str, lam: float) -> float | None:
    value: float | None = summary[scale][line][kind]["mean"][_place(summary, lam)]
    return value


def _place(summary: Any, lam: float) -> int:
    return min(range(len(summary["lams"])), key=lambda i: abs(summary["lams"][i] - lam))


def _iterations(summary: Any) -> Finding:
    """The ratio at few iterations against the reference, at a small and at a large λ."""
    small, large = (
        [_at(summary, "edges", line, "ratio", lam) for line in ("float64, 10 iterations", "reference")]
        for lam in (1.0, 10.0)
    )
    if None in small + large:
        return "No finite values to compare.", NOT_MEASURABLE
    text = (
        f"SD / EMD after 10 iterations and at the reference: {small[0]:.2f} and {small[1]:.2f} at λ = 1, "
        f"{large[0]:.2f} and {large[1]:.2f} at λ = 10 (M in edges)."
    )
    return text, verdict(abs(large[0] - large[1]) > 2 * abs(small[0] - small[1]))  # type: ignore[operator]


def _float32(summary: Any) -> Finding:
    """The smallest λ from which Algorithm 1 in float32 is not finite or off by more than 5 % from float64."""
    found = []
    for scale, words in (("edges", "M in edges"), ("unit", "M ≤ 1")):
        if scale not in summary:
            continue
        bad = [lam for lam in summary["lams"] if _apart(summary, scale, lam)]
        found.append(f"{words}: {f'from λ = {min(bad):g} on' if bad else 'at no λ up to 100'}")
    text = (
        f"Algorithm 1 at 100 iterations in float32 is NaN, or not within 5 % of float64, with {'; with '.join(found)}."
    )
    return text, verdict(any("from λ" in entry for entry in found))


def _apart(summary: Any, scale: str, lam: float) -> bool:
    single, double = (_at(summary, scale, f"{t}, 100 iterations", "ratio", lam) for t in ("float32", "float64"))
    return single is None or (double is not None and abs(single - double) > 0.05 * abs(double))


def _closer(summary: Any) -> Finding:
    pairs = [
        (lam, ratio, angle)
        for lam, ratio, angle in zip(
            summary["lams"],
            summary["edges"]["reference"]["ratio"]["mean"],
            summary["edges"]["reference"]["angle"]["mean"],
            strict=True,
        )
        if ratio is not None and angle is not None
    ]
    if len(pairs) < 2:
        return "No finite values to compare.", NOT_MEASURABLE
    text = "Reference, M in edges: " + "; ".join(f"λ = {lam:g}: {r:.2f}, {a:.0f}°" for lam, r, a in pairs) + "."
    errors = [abs(ratio - 1) for _, ratio, _ in pairs]
    return text, verdict(all(later <= earlier + 1e-3 for earlier, later in itertools.pairwise(errors)))


def _unusable(summary: Any) -> Finding:
    angles = {n: _at(summary, "edges", f"float32, {n} iterations", "angle", 10.0) for n in (10, 100)}
    log = summary["edges"]["log"]["angle"]["mean"]
    shown = ", ".join(f"{n} iterations: {'NaN' if a is None else f'{a:.0f}°'}" for n, a in angles.items())
    stable = "finite at every λ" if all(value is not None for value in log) else "not finite everywhere"
    text = (
        f"Algorithm 1 in float32 at λ = 10, angle to ∇EMD: {shown} (M in edges). "
        f"The same iteration on logarithms in float32 is {stable}: it is the algorithm and not the type."
    )
    return text, verdict(any(angle is None or angle > 45 for angle in angles.values()))


def _mse_rough(summary: Any) -> Finding:
    rough, reach = summary["roughness"], summary["reach"]
    text = (
        f"Second differences relative to the gradient: MSE {rough['MSE']:.2f}, EMD {rough['EMD']:.3f}, EMD² "
        f"{rough['EMD²']:.3f}. Bins with more than 5 % of the largest entry: MSE {reach['MSE']:.0%}, "
        f"EMD {reach['EMD']:.0%}, EMD² {reach['EMD²']:.0%}."
    )
    holds = rough["EMD²"] < rough["EMD"] < rough["MSE"] and min(reach["EMD"], reach["EMD²"]) > 2 * reach["MSE"]
    return text, verdict(holds)


def _sd_resembles(summary: Any) -> Finding:
    angles = {name: angle for name, angle in summary["angle_to_emd"].items() if name.startswith("SD")}
    text = "Angle to ∇EMD: " + ", ".join(f"{name[4:]}: {angle:.1f}°" for name, angle in angles.items()) + "."
    values = list(angles.values())
    return text, verdict(values == sorted(values, reverse=True) and values[-1] < 5)


def _sd_asymmetric(summary: Any) -> Finding:
    found = summary["asymmetry"]
    text = "How far exchanging p and q is from turning the gradient round: " + ", ".join(
        f"{name} {value:.0%}" for name, value in found.items()
    )
    holds = all((value > 0.01) == name.startswith("SD") for name, value in found.items())
    return text + ".", verdict(holds)


def _faster_cpu(summary: Any) -> Finding:
    seconds = summary["seconds"]
    ratios = {}
    for dtype in ("float64", "float32"):
        sd, ours = (seconds.get(f"{row}, cpu, {dtype}") for row in ("SD, 100 iterations", "EMD²"))
        if sd and ours:
            ratios[dtype] = sd["median"] / ours["median"]
    text = (
        "SD at 100 iterations takes " + " and ".join(f"{r:.0f} times as long in {t}" for t, r in ratios.items()) + "."
    )
    return text, verdict(bool(ratios) and min(ratios.values()) >= 60)


def _faster_gpu(summary: Any) -> Finding:
    sd, ours = (summary["seconds"].get(f"{row}, cuda, float32") for row in ("SD, 100 iterations", "EMD²"))
    if not sd or not ours:
        return "No CUDA device.", NOT_MEASURABLE
    ratio = sd["median"] / ours["median"]
    return f"SD at 100 iterations takes {ratio:.1f} times as long.", verdict(ratio >= 3.5)


def _impractical(summary: Any) -> Finding:
    row = summary["seconds"].get("SD, 1000 iterations, cpu, float64")
    if row is None:
        return "1000 iterations were not timed.", NOT_MEASURABLE
    return f"{show(row, 1, ' s')} for a minibatch of 512 on this CPU.", verdict(row["mean"] > 10)


NUMERICS: tuple[Check, ...] = (
    Check("figure 1", "The flows and gradients printed for the Ellyvan.", "ellyvan", _figure_1),
    Check("section 3.2", "With whole edge costs the terms of ∇EMD are multiples of 1/N.", "ellyvan", _quarters),
    Check("section 3.1", "The gradient neither makes nor destroys dirt.", "ellyvan", _conserves),
    Check("section 3.2", "The Hessian of EMD² is as printed, with N·H(i − k) − i.", "ellyvan", _hessian),
    Check(
        "section 5.3", "The tree has 1374 nodes and largest distance 26 with all edge costs 1.", "ellyvan", _tree_size
    ),
    Check("figure 2 a, c", "Larger λ need many more iterations to converge.", "stability", _iterations),
    Check("figure 2 b, d", "float32 degenerates for large λ.", "stability", _float32),
    Check("section 2.3", "Larger λ approximate the EMD better (10,000 iterations, float64).", "stability", _closer),
    Check("section 2.3", "In float32 with 10 or 100 iterations larger λ are unusable.", "stability", _unusable),
    Check(
        "figure 4 a, b",
        "MSE's gradient is rough and local; EMD's and EMD²'s reach over the whole space, and EMD²'s is smoother.",
        "gradients",
        _mse_rough,
    ),
    Check(
        "figure 4 c", "Larger λ resemble the true EMD; SD at λ = 10 approximates it well.", "gradients", _sd_resembles
    ),
    Check("figure 4 c", "The regularised versions are asymmetric.", "gradients", _sd_asymmetric),
    Check("table 1", "EMD² is 60 times faster than 100 iterations of SD on a CPU.", "timing", _faster_cpu),
    Check("table 1", "EMD² is 3.5 times faster than SD on a GPU.", "timing", _faster_gpu),
    Check("table 1", "SD in float64 with 1000 iterations is not practical: 74 s a minibatch.", "timing", _impractical),
)
