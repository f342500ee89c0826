"""What the paper shows at each place, in words and printed numbers; its curves are not ours to copy."""

from __future__ import annotations

PAPER: dict[str, str] = {
    "ellyvan": (
        "Figure 1: a network sees a hybrid of an elephant and a van. Printed are its output p = (0.2, 0.4, 0.2, "
        "0.2), the label q = (0, 0.5, 0.5, 0), the dirt on each edge (0.2, 0.1, 0.3, 0.2 and 0.1 between animal "
        "and vehicle), ∇EMD = (1.5, −0.5, −1.5, 0.5) and ∇EMD² = (0.5, −0.1, −0.7, 0.3)."
    ),
    "stability": (
        "Figure 2: on the WordNet tree of the 1000 ImageNet classes, SD / EMD (axis 0 to 1.1) and the angle "
        "between the gradients (0 to π/2) against λ from 0.1 to 100. Panels a, c: 10, 100 and 1000 iterations. "
        "Panels b, d: float64 and float32. A dashed line is 10,000 iterations in float64. It does not say how p "
        "and q were drawn, nor whether M is in edges or normalised, so both are here."
    ),
    "gradients": (
        "Figure 4: gradients that turn a smooth p into a spiky q. a: MSE, rough and local. b: EMD and EMD², over "
        "the whole space, EMD² smoother. c: SD at λ = 0.5, 1 and 10; the largest is close to EMD. The "
        "distributions are drawn, not printed; ours look like them."
    ),
    "timing": (
        "Table 1: one minibatch of 512 on the tree of 1374 nodes, on an i5-6600K (float64) and a GTX 1080 "
        "(float32). SD with 10, 100, 1000 iterations: 942 ms, 7.51 s, 74.5 s and 15.1, 88.9, 865 ms. EMD²: 126 ms "
        "and 25 ms."
    ),
    "breathing": (
        "Figure 5: test EMD (axis 0 to 10) over 12 epochs for MSE, EMD² and SD; 75 patients of a sleep "
        "laboratory, 200 one-minute clips of each, 60 patients for training. EMD² and SD learn much faster than "
        "MSE; over a longer period EMD² is more accurate than SD. The learning rate, the bins and the unit of M "
        "are not given."
    ),
    "imagenet": (
        "Figure 6: ImageNet, an AlexNet with batch normalisation at 112 × 112. a: top-1 over 100 epochs with all "
        "images (axis to 50 %). b: top-1 over 200 epochs with 50,000 images, 4 % (axis to 10 %). c: their EMD "
        "(axis to 10). Losses: CE, EMD², their 1:1 mixture, and SD with CE at 1:3."
    ),
    "convergence": (
        "Section 5.3: “SD and EMD alone do not converge using SGD on a large variation of parameter combinations "
        "that we tried”, and SD with CE at 1:1 did not converge."
    ),
}
