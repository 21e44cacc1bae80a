"""Grid families: the 4-bit grids a group may choose from, their scale rule and where they came from.

The paper names PO2(NF4), MPO2, PO2(Split87) and SFP4 but its constants could not be read: every learned grid here is
a reconstruction (Lloyd on Gaussian groups of 16, unless said otherwise). The others are published formats.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from steelyard.errors import InputError, did_you_mean

Rule = Literal["absmax", "fit", "ocp"]
Ties = Literal["even", "down"]
Criterion = Literal["mse", "mae", "max"]
Grid = tuple[float, ...]

BYTE_SCALES = ("e4m3", "e4m3_side", "e3m3", "e4m2", "e3m4", "e8m0")
SCALE_FORMATS = (*BYTE_SCALES, "fp16", "fp32")
MAX_GRIDS = 8
MAX_GRIDS_BYTE = 4
MAX_CANDIDATES = 64
MAX_GROUP = 1 << 20
MAX_NAME = 100
LEAST_END = 1e-6
LEVELS = 16

# Index of an E2M1 grid (ascending, -0 before +0) -> the sign-magnitude code that hardware and torchao store.
E2M1_CODES = (15, 14, 13, 12, 11, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)


@dataclass(frozen=True)
class GridFamily:
    """One to eight grids, of which every group takes one, and the rule that scales a group onto them.

    Args:
        name: Name under which the family may be registered.
        grids: Ascending values, at most 16 a grid; a code is an index into them. E2M1 grids hold 16 entries with -0 and
            +0 side by side (``E2M1_CODES`` maps an index to the hardware's code).
        rule: "absmax": scale = max|x| / unit. "fit": the tightest scale that covers both ends of the grid.
            "ocp": the MX floor rule 2^(floor(log2 max|x|) - floor(log2 unit)) where the scale is E8M0, else "absmax".
        default_group: Elements that share a scale.
        scale_format: One of ``SCALE_FORMATS``.
        candidates: Factors on the scale that the family itself tries; the least error wins.
        cap: Value of E4M3 that the largest scale (factor 1) is mapped to; below 448 it leaves room for larger factors.
            Other scale formats take the same share of their largest value.
        ties: Which of two equally near values wins: "down" the lower, "even" the one with the even sign-magnitude code,
            as E2M1 hardware rounds (grids of 15 or 16 values).
        signed_scale: One grid only; a group may also take its mirror image, stored as a negative scale.
        unit: The value in grid units that max|x| is mapped to (6 for E2M1, whose top value is 6).
        criterion: What the choice of grid and factor minimises over a group: the squared error ("mse"), the absolute
            error ("mae") or the largest one ("max"). All but "mse" are searched without numba, several times slower.

    Raises:
        InputError: A field that cannot be used.
    """

    name: str
    grids: tuple[Grid, ...]
    rule: Rule = "absmax"
    default_group: int = 16
    scale_format: str = "e4m3"
    candidates: tuple[float, ...] = (1.0,)
    cap: float = 448.0
    ties: Ties = "down"
    signed_scale: bool = False
    unit: float = 1.0
    criterion: Criterion = "mse"

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "grids", tuple(tuple(float(value) for value in grid) for grid in self.grids))
            object.__setattr__(self, "candidates", tuple(float(factor) for factor in self.candidates))
            object.__setattr__(self, "cap", float(self.cap))
            object.__setattr__(self, "unit", float(self.unit))
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"grids, candidates, cap and unit of family {self.name!r} must be numbers") from None
        _check_name_and_options(self)
        _check_grids(self)
        for name, values in (("candidates", self.candidates), ("cap", (self.cap,)), ("unit", (self.unit,))):
            if not values or not all(math.isfinite(value) and value > 0 for value in values):
                raise InputError(f"{name} of family {self.name!r} must be positive finite numbers; got {values}")
        if len(self.candidates) > MAX_CANDIDATES:
            raise InputError(f"candidates of family {self.name!r} must be at most {MAX_CANDIDATES} factors")
        if self.cap > 448:
            raise InputError(f"cap of family {self.name!r} must be at most 448, the largest E4M3 value; got {self.cap}")

    def __hash__(self) -> int:
        return hash(self.name)  # tables are cached by family, and hashing all the grids takes longer than a look-up

    @property
    def n_grids(self) -> int:
        """Grids that a group may choose from; a mirror image counts."""
        return 2 if self.signed_scale else len(self.grids)

    @property
    def search_grids(self) -> tuple[Grid, ...]:
        """Ascending grids that the encoder tries, in the order of the selector."""
        if self.signed_scale:
            return self.grids[0], tuple(-value for value in reversed(self.grids[0]))
        return self.grids

    @property
    def decode_grids(self) -> tuple[Grid, ...]:
        """Grids that a code indexes, by selector; the second of a signed scale descends."""
        if self.signed_scale:
            return self.grids[0], tuple(-value for value in self.grids[0])
        return self.grids

    def to_json(self) -> str:
        """Return the family as JSON text that ``from_json`` reads back equal."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GridFamily:
        """Read a family written by ``to_json``.

        Raises:
            InputError: Not such a text.
        """
        try:
            fields = json.loads(text)
            fields["grids"] = tuple(tuple(grid) for grid in fields["grids"])
            fields["candidates"] = tuple(fields["candidates"])
            return cls(**fields)
        except InputError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InputError(f"The text of a grid family cannot be read ({error}); write it with to_json()") from None


def _check_name_and_options(family: GridFamily) -> None:
    if not isinstance(family.name, str) or not family.name:
        raise InputError(f"name of a grid family must be a text that is not empty; got {family.name!r}")
    if len(family.name) > MAX_NAME or not family.name.isprintable():  # it reaches terminals, and may come from a file
        raise InputError(
            f"name of a grid family must be at most {MAX_NAME} printable characters; got {family.name[:MAX_NAME]!r}"
        )
    for field, allowed in (
        ("rule", get_args(Rule)),
        ("ties", get_args(Ties)),
        ("criterion", get_args(Criterion)),
        ("scale_format", SCALE_FORMATS),
        ("signed_scale", (False, True)),
    ):
        value = getattr(family, field)
        if value not in allowed:
            raise InputError(f"{field} of family {family.name!r} must be one of {list(allowed)}; got {value!r}")
    check_group_size(f"default_group of family {family.name!r}", family.default_group)


def check_group_size(name: str, size: int) -> None:
    """Refuse what is no size of a group; rows are padded to whole groups, so a huge one would fill the memory.

    Raises:
        InputError: Not an integer from 1 to ``MAX_GROUP``.
    """
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_GROUP:
        raise InputError(f"{name} must be an integer >= 1 and at most {MAX_GROUP}; got {size!r}")


def _check_grids(family: GridFamily) -> None:
    where = f"of family {family.name!r}"
    if not 1 <= len(family.grids) <= MAX_GRIDS:
        raise InputError(f"grids {where} must be 1 to {MAX_GRIDS} grids; got {len(family.grids)}")
    if family.signed_scale and len(family.grids) != 1:
        raise InputError(f"grids {where} must be a single grid with signed_scale; got {len(family.grids)}")
    for number, grid in enumerate(family.grids):
        if not 2 <= len(grid) <= LEVELS:
            raise InputError(f"grid {number} {where} must have 2 to {LEVELS} values (4-bit codes); got {len(grid)}")
        if not all(math.isfinite(value) and abs(value) <= 1e6 for value in grid):
            raise InputError(f"grid {number} {where} must have finite values of at most 1e6 in size")
        if any(low > high for low, high in itertools.pairwise(grid)):
            raise InputError(f"grid {number} {where} must be ascending; sort it")
        if grid[0] > -LEAST_END or grid[-1] < LEAST_END:  # "fit" divides by the ends
            raise InputError(
                f"grid {number} {where} must reach below and above 0 by {LEAST_END} or more, or one sign of x has no "
                "value"
            )
        if family.ties == "even" and len(grid) < LEVELS - 1:
            raise InputError(f"ties='even' {where} needs grids of 15 or 16 values; grid {number} has {len(grid)}")
    check_grid_count(family, family.scale_format)


def check_grid_count(family: GridFamily, scale_format: str) -> None:
    """Refuse more than four grids where the scale is a byte.

    Raises:
        InputError: Five or more grids with a byte scale.
    """
    if scale_format in BYTE_SCALES and family.n_grids > MAX_GRIDS_BYTE:
        raise InputError(
            f"Family {family.name!r} has {family.n_grids} grids, but a scale of one byte ({scale_format}) holds "
            f"selectors for 1 to {MAX_GRIDS_BYTE}; use scale 'fp16' or 'fp32'"
        )


def _mirror(grid: Grid) -> Grid:
    return tuple(-value for value in reversed(grid))


def _shift(grid: Grid, shift: float) -> Grid:
    return tuple(value + shift for value in grid)


_HALF_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1: Grid = (*_mirror(_HALF_E2M1), *_HALF_E2M1)
"""FP4 with 2 exponent bits and 1 mantissa bit, in its own units (OCP MX 1.0, table 5)."""

_HALF_E1M2 = tuple(0.25 * step for step in range(8))
INT4: Grid = tuple(float(step) for step in range(-7, 8))

# QLoRA (Dettmers et al. 2023), appendix E; equal to the quantiles of its definition to 1.1e-7.
NF4_GRID: Grid = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_NF4_COMPANION = (
    -.9801, -.8557, -.7437, -.6048, -.4632, -.3287, -.1942, -.0603, .0731, .2066, .3412, .4818, .6212, .7567, .8706, 1.0
)  # fmt: skip
# The published idea taken literally (NF4 held, its companion learned on the groups that NF4 codes worst), monotone
# under absmax on 100,000 Gaussian groups; the companion above comes from a recipe that renormalises at every step.
_NF4_RESIDUAL = (
    -.9836, -.8066, -.6167, -.4708, -.3482, -.2388, -.1363, -.0361, .0643, .1673, .2744, .3861, .5077, .6474, .8217,
    .9868,
)  # fmt: skip
_MPO2_GAUSS = (
    -.9809, -.7409, -.5790, -.4454, -.3279, -.2211, -.1220, -.0271, .0675, .1658, .2696, .3820, .5069, .6500, .8264,
    .9904,
)  # fmt: skip
# Learned on a pool of Gaussian, Student t5 and t3 with the ends pinned to -1 and +1.
_ROBUST_LOW = (
    -1.0, -.7427, -.5706, -.4294, -.31, -.2047, -.1094, -.0212, .0649, .1582, .2601, .3719, .5013, .6523, .841, 1.0
)  # fmt: skip
_ROBUST_HIGH = (
    -1.0, -.8388, -.6483, -.4961, -.3684, -.2551, -.1544, -.0633, .023, .1121, .2087, .3153, .4355, .5755, .7447, 1.0
)  # fmt: skip
_SPLIT87 = (
    -1.0, -.823, -.6753, -.5442, -.4247, -.3139, -.2072, -.103, 0.0, .1146, .2297, .3497, .4771, .6194, .7851, .9943
)  # fmt: skip
_LLOYD1 = (
    -.9816, -.7801, -.6158, -.4763, -.3526, -.2393, -.1339, -.0336, .0653, .1658, .2702, .3804, .5008, .6353, .7921,
    .9841,
)  # fmt: skip


def sfp4_family(shift: float = 0.5, pair: bool = False, name: str | None = None) -> GridFamily:
    """Return E2M1 and its two shifted copies E2M1 + c and E2M1 - c, scale rule "fit" (reconstruction).

    Args:
        shift: c in E2M1 units (top value 6); 0.5 keeps an exact 0 in every grid.
        pair: Leave E2M1 itself out: the shifted pair needs one selector bit only, which is free in E4M3.
        name: Name of the family.

    Raises:
        InputError: ``shift`` outside [0, 6): a grid would not reach both signs.
    """
    if not 0 <= shift < 6:
        raise InputError(f"shift must lie in [0, 6), in E2M1 units; got {shift}")
    grids = (_shift(E2M1, shift), _shift(E2M1, -shift))
    return GridFamily(
        name or ("sfp4_pair" if pair else "sfp4"),
        grids if pair else (E2M1, *grids),
        rule="fit",
        scale_format="e4m3" if pair else "e3m3",
        ties="even",
        unit=6.0,
    )


NVFP4 = GridFamily("nvfp4", (E2M1,), ties="even", unit=6.0)
MXFP4 = GridFamily("mxfp4", (E2M1,), rule="ocp", default_group=32, scale_format="e8m0", ties="even", unit=6.0)
NF4 = GridFamily("nf4", (NF4_GRID,))
FOUR_OVER_SIX = GridFamily("four_over_six", (E2M1,), candidates=(1.0, 1.5), cap=256.0, ties="even", unit=6.0)
IF4 = GridFamily("if4", (E2M1, tuple(step * 6 / 7 for step in INT4)), ties="even", unit=6.0)
# E1M2 is evenly spaced: normalised to absmax it holds the values of INT4, so MIXFP4 is IF4 by another name.
MIXFP4 = GridFamily(
    "mixfp4",
    (E2M1, tuple(step * 6 / 1.75 for step in (*_mirror(_HALF_E1M2), *_HALF_E1M2))),
    ties="even",
    unit=6.0,
)
PO2_NF4 = GridFamily("po2_nf4", (NF4_GRID, _NF4_COMPANION), rule="fit")
PO2_NF4_RESIDUAL = GridFamily("po2_nf4_residual", (NF4_GRID, _NF4_RESIDUAL))
MPO2 = GridFamily("mpo2", (_MPO2_GAUSS, _mirror(_MPO2_GAUSS)))
MPO2_ROBUST = GridFamily("mpo2_robust", (_ROBUST_LOW, _ROBUST_HIGH))
PO2_SPLIT87 = GridFamily("po2_split87", (_SPLIT87, _mirror(_SPLIT87)), rule="fit")
SFP4 = sfp4_family()
SFP4_PAIR = sfp4_family(pair=True)
LLOYD1 = GridFamily("lloyd1", (_LLOYD1,))

FAMILIES: dict[str, GridFamily] = {
    member.name: member
    for member in (
        NVFP4, MXFP4, NF4, FOUR_OVER_SIX, IF4, MIXFP4, PO2_NF4, PO2_NF4_RESIDUAL, MPO2, MPO2_ROBUST, PO2_SPLIT87, SFP4,
        SFP4_PAIR, LLOYD1,
    )
}  # fmt: skip


def family(name: str | GridFamily) -> GridFamily:
    """Return the family of that name; a family is returned as it is.

    Raises:
        InputError: No family of that name.
    """
    if isinstance(name, GridFamily):
        return name
    if isinstance(name, str) and name in FAMILIES:
        return FAMILIES[name]
    if isinstance(getattr(name, "family", None), GridFamily):  # what fit_grids returns
        raise InputError(f"family must be a GridFamily; got a {type(name).__name__}: give its .family")
    said, hint = (repr(name), did_you_mean(name.lower(), FAMILIES)) if isinstance(name, str) else (_kind(name), "")
    raise InputError(f"family must be a GridFamily or one of {sorted(FAMILIES)}; got {said}.{hint}")


def register_family(member: GridFamily) -> GridFamily:
    """Make a family known by its name and return it; registering an equal one again changes nothing.

    Raises:
        InputError: Not a ``GridFamily``, or another family has the name.
    """
    if not isinstance(member, GridFamily):
        raise InputError(f"register_family takes a GridFamily; got {_kind(member)}")
    if FAMILIES.setdefault(member.name, member) != member:
        raise InputError(f"A different family named {member.name!r} is registered already; choose another name")
    return member


def _kind(value: Any) -> str:
    return type(value).__name__
