"""The theorems' sums written out as the paper prints them, loop by loop: the judge of the fast forms."""
# ruff: noqa: E741 (the letters are the paper's)

from functools import cache


@cache
def size(j, momentum):
    return sum(momentum ** (j - k) for k in range(1, j + 1))


def oldest(step, max_staleness):
    return max(1, step - max_staleness)


def stage_one_terms(c):
    """Theorem 1's four terms; B takes the index t of the sum it stands in."""
    J, a, eta, q = c.steps, c.momentum, [None, *c.rates()], [None, *c.squares()]
    noise = c.gradient_noise**2 / c.batch_size
    variance = non_iid = staleness = 0.0
    B = [None]
    for t in range(1, J + 1):
        B.append(c.smoothness**2 * size(t, a) * sum(a ** (t - k) * noise * q[k] for k in range(1, t + 1)))
    for j in range(1, J + 1):
        A = c.smoothness / 2 * noise * size(j, a) * sum(a ** (j - l) * q[l] for l in range(1, j + 1))
        variance += A * eta[j] ** 2
        non_iid += eta[j] * size(j, a) * c.heterogeneity**2
        for l in range(1, j + 1):
            start = oldest(l, c.max_staleness)
            for t in range(start, j):
                staleness += eta[j] * a ** (j - l) * (j - start) * eta[t] ** 2 * B[t]
    return {
        "variance": variance / J,
        "non_iid": non_iid / J,
        "staleness": staleness / J,
        "initial_gap": c.initial_gap / J,
    }


def printed_condition(c):
    """The largest left side, over l, of Theorem 1's second condition as printed."""
    J, a, eta = c.steps, c.momentum, [None, *c.rates()]
    growth = 1 + c.noise_growth / c.batch_size
    return max(
        c.smoothness**2
        * sum(
            (J - oldest(t, c.max_staleness))
            * sum(eta[k] ** 2 * size(k, a) * growth * a ** (k - t) for k in range(l, t + 1))
            for t in range(l, J + 1)
        )
        for l in range(1, J + 1)
    )


def summed_condition(c):
    """The largest ratio, over k, of what |grad F_i(w_tau(k))|^2 costs to what it leaves over, summed over j."""
    J, a, eta = c.steps, c.momentum, [None, *c.rates()]
    growth = 1 + c.noise_growth / c.batch_size
    worst = 0.0
    for k in range(1, J + 1):
        cost = spare = 0.0
        for j in range(k, J + 1):
            spare += eta[j] * a ** (j - k)
            for l in range(1, j + 1):
                start = oldest(l, c.max_staleness)
                for t in range(max(start, k), j):
                    cost += eta[j] * a ** (j - l) * (j - start) * eta[t] ** 2 * size(t, a) * a ** (t - k)
        worst = max(worst, c.smoothness**2 * growth * cost / spare)
    return worst


def stage_two_terms(c):
    """Theorem 2's right side with I_{j,l,t} = 3 L^2 B^2 s_t alpha^(j-l) (j-l)."""
    J, a, eta = c.steps, c.momentum, [None, *c.rates()]
    error = c.estimate_error**2
    variance = non_iid = staleness = 0.0
    for j in range(1, J + 1):
        variance += 1.5 * eta[j] * size(j, a) * error * (1 + 2 * c.spread_growth)
        non_iid += 1.5 * eta[j] * size(j, a) * c.spread**2
        for l in range(1, j + 1):
            for t in range(l, j):
                staleness += eta[j] * error * eta[t] ** 2 * size(t, a) * inner(c, j, l, t)
    return {
        "variance": variance / J,
        "non_iid": non_iid / J,
        "staleness": staleness / J,
        "initial_gap": c.initial_gap / J,
    }


def inner(c, l, k, t):
    """I_{l,k,t}."""
    a = c.momentum
    return 3 * c.smoothness**2 * c.clip_ratio**2 * size(t, a) * a ** (l - k) * (l - k)


def stage_two_weights(c):
    """V_j for j = 1..J."""
    J, a, eta = c.steps, c.momentum, [None, *c.rates()]
    weights = []
    for j in range(1, J + 1):
        value = eta[j] * size(j, a) / 2 - sum(3 * c.spread_growth * eta[l] * a ** (l - j) for l in range(j, J + 1))
        for l in range(j, J + 1):
            for t in range(j, l):
                value -= eta[l] * eta[t] ** 2 * sum(a ** (t - j) * inner(c, l, k, t) for k in range(1, t + 1))
        weights.append(value)
    return weights
