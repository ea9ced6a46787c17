"""Algorithm 3 as the paper prints it, one record per person, slowly, in float64. The oracle of the mechanism.

Lines are those of the paper; the clip of line 8 is applied to the vector's length, as PRIVACY.md says.
`noise(scale, size)` returns real numbers.
"""

import numpy as np


def algorithm3(kappa, y, z, tau, sigma1, sigma2, n_classes, noise):
    """One query. kappa, y, z are arrays over all records; returns (noisy scores, K, new z, votes)."""
    z = np.array(z, dtype=float)
    active = z >= 1 / (2 * sigma1**2)  # 4
    selected = [i for i in range(len(y)) if active[i] and kappa[i] >= tau]
    K = len(selected) + noise(sigma1, 1)[0]  # 5
    K = max(K, 30.0)  # appendix
    votes = np.zeros(n_classes)
    for i in selected:  # 6
        z[i] -= 1 / (2 * sigma1**2)  # 7
        f = min(kappa[i], sigma2 * np.sqrt(2 * K * z[i]))  # 8
        z[i] -= f**2 / (2 * sigma2**2 * K)  # 9
        votes[y[i]] += f
    scores = votes + noise(sigma2 * np.sqrt(K), n_classes)  # 11: the answer is their argmax
    return scores, K, z, votes


def with_owners(kappa, y, owner, z, tau, sigma1, sigma2, n_classes, noise, cap=None):
    """The same with people who hold several records; `z` is a dict by owner."""
    F, K, z = _counted(kappa, y, owner, z, tau, sigma1, n_classes, noise, cap)
    votes = np.zeros(n_classes)
    for o, whole in F.items():
        f = whole * min(1.0, sigma2 * np.sqrt(2 * K * z[o]) / np.linalg.norm(whole))
        z[o] -= f @ f / (2 * sigma2**2 * K)
        votes += f
    scores = votes + noise(sigma2 * np.sqrt(K), n_classes)
    return scores, K, z, votes


def exponential(kappa, y, owner, z, tau, sigma1, sigma2, n_classes, noise, cap=None):
    """The same with the exponential vote: (the law of the label, K, new z, votes)."""
    F, K, z = _counted(kappa, y, owner, z, tau, sigma1, n_classes, noise, cap)
    s = sigma2 * np.sqrt(K)
    votes = np.zeros(n_classes)
    for o, whole in F.items():
        width = whole.max() - whole.min()
        f = whole * (min(1.0, s * np.sqrt(8 * z[o]) / width) if width else 1.0)
        z[o] -= (f.max() - f.min()) ** 2 / (8 * s**2)
        votes += f
    weights = np.exp((votes - votes.max()) / s)
    return weights / weights.sum(), K, z, votes


def _counted(kappa, y, owner, z, tau, sigma1, n_classes, noise, cap):
    """Lines 4 to 7: the whole votes of those who take part, K, and what all have left."""
    z = dict(z)
    F, m = {}, {}
    for o in sorted(set(owner)):
        near = sorted((i for i in range(len(y)) if owner[i] == o and kappa[i] >= tau), key=lambda i: (-kappa[i], y[i]))
        near = near[:cap]
        if near and z[o] >= len(near) ** 2 / (2 * sigma1**2):
            m[o] = len(near)
            F[o] = np.zeros(n_classes)
            for i in near:
                F[o][y[i]] += kappa[i]
    K = max(sum(m.values()) + noise(sigma1, 1)[0], 30.0)
    for o in F:
        z[o] -= m[o] ** 2 / (2 * sigma1**2)
    return F, K, z
