r"""The distribution of a normal plus a standard Gumbel number, for any variance of the former.

Its distribution function F is written :math:`F(u) = \exp(-e^{-\ell(u)})`. The *level*
:math:`\ell` is u itself where there is no variance, and smooth and nearly straight elsewhere: with
:math:`y = u/\sqrt{1+s^2}`,

.. math:: \ell = y + \left(1 - 1/\sqrt{1+s^2}\right) P_s(x), \qquad
          x \propto \frac{y-1}{\sqrt{8^2+(y-1)^2}} + \text{const},

where P is a polynomial in x, whose coefficients are tabulated against the standard deviation s (and
are cubic in between). It is right to some 2e-5 in the level where F lies between 1e-8 and
1 - 1e-7 or further; above that the level goes on as a straight line.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

DEGREE = 16
ROWS = 48
"""Pieces of the table between no deviation and an infinite one."""

LEFT, RIGHT = (2.9, 5.6), (16.0, 6.0)
"""Where it begins and ends: without deviation, and as a multiple of a large one."""

_MIDDLE = 2.0
"""The standard deviation in the middle of the table."""

_CENTRE, _STRETCH = 1.0, 8.0


def left_end(deviation: Tensor) -> Tensor:
    """The smallest u that :func:`level` is made for; F is negligible there."""
    return -(LEFT[0] ** 2 + (LEFT[1] * deviation).square()).sqrt()


def right_end(deviation: Tensor) -> Tensor:
    """Where :func:`level` begins to be a straight line; 1 - F is negligible there."""
    return (RIGHT[0] ** 2 + (RIGHT[1] * deviation).square()).sqrt()


def level(u: Tensor, deviation: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    r"""The level :math:`\ell(u)` and its derivative by u.

    Args:
        u: no smaller than :func:`left_end`.
        deviation: standard deviation of the normal number, in a shape that broadcasts to that of u.
        table: :func:`level_table`.
    """
    shrink, first, half = _scales(deviation)
    row = deviation / (deviation + _MIDDLE) * len(table)
    piece = row.long().clamp(0, len(table) - 1)
    cubic = table.to(u.dtype)[piece]
    weights = _horner(cubic.unbind(-2), (row - piece).unsqueeze(-1))[0]
    share = deviation.square() * shrink * shrink / (1 + shrink)  # 1 - shrink, without cancellation
    inside = torch.minimum(u, right_end(deviation))
    shifted = inside * shrink - _CENTRE
    root = torch.rsqrt(_STRETCH**2 + shifted.square())
    value, slope = _horner(
        (weights * share.unsqueeze(-1)).unbind(-1), (shifted * root - first) / half - 1
    )
    slope = shrink * (1 + slope * (_STRETCH**2 / half) * root.pow(3))
    return inside * shrink + value + slope * (u - inside), slope


def _scales(deviation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """1/√(1+s²); where the polynomial's variable begins, and half the way to where it ends."""
    shrink = torch.rsqrt(1 + deviation.square())
    first, last = (_squeezed(end(deviation) * shrink) for end in (left_end, right_end))
    return shrink, first, (last - first) / 2


def _squeezed(y: Tensor) -> Tensor:
    shifted = y - _CENTRE
    return shifted * torch.rsqrt(_STRETCH**2 + shifted.square())


def _horner(coefficients: tuple[Tensor, ...], x: Tensor) -> tuple[Tensor, Tensor]:
    """A polynomial, lowest power first, and its derivative."""
    value, slope = coefficients[-1], torch.zeros_like(x)
    for coefficient in coefficients[-2::-1]:
        slope = torch.addcmul(value, slope, x)
        value = torch.addcmul(coefficient, value, x)
    return value, slope


@cache
def level_table() -> Tensor:
    """What :func:`level` needs, in float64: ``(rows, 4, degree + 1)``.

    A row is a piece between two deviations: for every power of x the coefficients of a cubic.
    """
    # Four deviations for each piece, of which neighbours share one.
    share = torch.linspace(0, 1, 3 * ROWS + 1, dtype=torch.float64)
    deviation = (_MIDDLE * share / (1 - share)).clamp(1e-4, 1e6).unsqueeze(1)
    angles = (torch.arange(DEGREE + 1, dtype=torch.float64) + 0.5) * (torch.pi / (DEGREE + 1))
    x = torch.cos(angles)
    shrink, first, half = _scales(deviation)
    squeezed = first + half * (x + 1)
    y = _CENTRE + _STRETCH * squeezed * torch.rsqrt(1 - squeezed.square())
    rest = (_exact_level(y / shrink, deviation) - y) / (1 - shrink)
    powers = torch.linalg.solve(torch.vander(x, increasing=True), rest.T).T
    thirds = torch.vander(torch.arange(4, dtype=torch.float64) / 3, increasing=True)
    return torch.linalg.solve(thirds, powers.unfold(0, 4, 3).mT).contiguous()


def _exact_level(u: Tensor, deviation: Tensor) -> Tensor:
    """The level by the trapezoid rule: over the normal number, or over the other if it is wide.

    Args:
        u: ``(deviations, places)``.
        deviation: ``(deviations, 1)``, in ascending order.
    """
    narrow = int((deviation < 0.6).sum())
    u, deviation = u.unsqueeze(2), deviation.unsqueeze(2)
    z, w = (torch.arange(*ends, 0.25, dtype=u.dtype) for ends in ((-10, 10), (-5, 45)))
    normal, gumbel = -z.square() / 2, -w - (-w).exp()
    rate = (deviation[:narrow] * z - u[:narrow]).exp()
    standing = (u[narrow:] - w) / deviation[narrow:]
    log_cdf = torch.special.log_ndtr
    below = [_log_mean(normal, -rate), _log_mean(gumbel, log_cdf(standing))]
    above = [_log_mean(normal, (-torch.expm1(-rate)).log()), _log_mean(gumbel, log_cdf(-standing))]
    log_below, log_above = torch.cat(below), torch.cat(above)
    exponent = torch.where(log_above < log_below, -torch.log1p(-log_above.exp()), -log_below)
    return -exponent.log()


def _log_mean(log_weights: Tensor, log_values: Tensor) -> Tensor:
    return torch.logsumexp(log_weights.log_softmax(0) + log_values, 2)
