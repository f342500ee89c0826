"""Ten thousand mutated inputs for each parser: a Tree or a ValueError that says something, and nothing else."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from earthwork.files import parse_json, parse_yaml
from earthwork.storage.reading import SOURCES, _from_json
from earthwork.trees import from_nested, from_newick
from earthwork.trees.nested import dump_json
from earthwork.trees.shipped import cifar10

# Mutated names may look like mistakes, of which builders warn.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

COUNT = 10_000
LINE = (
    "02121808 05 n 04 domestic_cat 0 house_cat 0 Felis_domesticus 0 Felis_catus 0 003 @ 02121620 n 0000 "
    "#m 02120997 n 0000 ~ 02122298 n 0000 | any domesticated member of the genus Felis  \n"
)
NEWICK = "((cat:1,'grey ''wolf''':2.5e-1)[a [nested] comment]carnivore:0.5,(a,b:0)c:3,\n d:1):0;"
CSV = 'order,family,species\ncats,"Fel,is",wild\ncats,lynx,\n"do""gs",Canis,wolf\n'
NESTED = (
    '{"animal": {"cat": ["tabby", "lynx"], "dog": null}, "x": {"name": "rock", "cost": 2, "children": [{"a": []}]}}'
)


def mutate(text: str, pool: Sequence[str], chance: random.Random) -> str:
    """The text with some of its parts deleted, doubled, swapped or replaced."""
    signs = list(text)
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        at, length = chance.randrange(len(signs) + 1), chance.choice([1, 1, 1, 2, 10])
        part = signs[at : at + length]
        new = chance.choice([[], part * 2, [chance.choice(pool)], [*part, chance.choice(pool)], part[::-1]])
        if chance.random() < 0.1:
            elsewhere = chance.randrange(len(signs) + 1)
            new = signs[elsewhere : elsewhere + length]
        signs[at : at + length] = new
        if not signs:
            break
    return "".join(signs)


def attempt(read: Callable[[str], object], mutant: str, where: str) -> bool:
    """Whether there is a tree; else there must be a ``ValueError`` that says where."""
    try:
        read(mutant)
    except ValueError as error:
        message = str(error)
    except Exception as error:
        pytest.fail(f"{error!r} for {mutant!r}")
    else:
        return True
    if not re.search(where, message):
        pytest.fail(f"{message!r} does not say where, for {mutant!r}")
    return False


def check(read: Callable[[str], object], text: str, pool: Sequence[str], where: str, count: int = COUNT) -> None:
    chance = random.Random(0)
    made = sum(attempt(read, mutate(text, pool, chance), where) for _ in range(count))
    assert 0 < made < count


VALUES = ["-1", "0", "1e999", "9" * 20, "9" * 5000, "NaN", "-0.5", "null", "true", "[", "{}", '"x"', "\x00", "\ud800"]
IN_NAMES = r"|names: expected each name once, got '"
IN_TABLE = r"|table: expected each class once, got .* in line|classes: '.*' is an ancestor of '"
IN_JSON = (
    r"line \d+, column \d+|at (node )?\d+|twice|\"(columns|nodes|bins|info|format)\"|version|digits|finite numbers"
    r"|parents:|bins:|nested: .* (below|at the top)"
)


def load_json(text: str) -> object:
    return _from_json(parse_json(text))


def test_newick() -> None:
    check(from_newick, NEWICK, "()[],:;'\"0123456789.eE+- \n\t_ax\x00é", r"line \d+, column \d+" + IN_NAMES)


def test_json_file() -> None:
    check(load_json, dump_json(cifar10()), '{}[],:"0123456789.-eE \n\\ntfa\x00é', IN_JSON + IN_NAMES)


def test_json_file_with_other_values() -> None:
    values = dump_json(cifar10()).replace("[", " [ ").replace("]", " ] ").replace(",", " , ").split(" ")
    chance = random.Random(1)
    for _ in range(COUNT // 2):
        parts = list(values)
        parts[chance.randrange(len(parts))] = chance.choice(VALUES)
        attempt(load_json, "".join(parts), IN_JSON + IN_NAMES)


def test_nested_json() -> None:
    where = r"line \d+, column \d+|twice|below|for '|of '|at least one|at the top|digits|finite numbers" + IN_NAMES
    check(lambda text: from_nested(parse_json(text)), NESTED, '{}[],:"0123456789.-eE \n\\ntfname\x00é', where)


def test_csv(tmp_path: Path) -> None:
    def read(text: str) -> object:
        (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
        return SOURCES["table"](tmp_path / "t.csv")

    check(read, CSV, '",\n\r ;\t0a\x00é\ufeff', r"line \d+|\d+ lines" + IN_NAMES + IN_TABLE)


def test_yaml() -> None:
    text = "animal:\n  cat: [tabby, lynx]\n  dog: !!null ''\nrock: &a {x: }\nthing: [&b y, {z: }]\n"
    where = r"line \d+, column \d+|below|for '|of '|at least one|at the top|nested too deeply|character" + IN_NAMES
    signs = "{ } [ ] : - &b *b *a !!int !!set !!float <<: | > ' \" # % @ ? , 0 a: ~ \\U 2001-99-99 1:1:1 .inf"
    check(lambda mutant: from_nested(parse_yaml(mutant)), text, [*signs.split(), " ", "\n", "  "], where, count=1000)


@pytest.mark.parametrize("sign", ["(", "[", "'", " ", ",", ":", "a", "[]", "(a,", "''"])
def test_newick_of_many_equal_signs_ends(sign: str) -> None:
    with pytest.raises(ValueError, match="Newick"):
        from_newick(sign * 100_000)


@pytest.mark.parametrize("sign", ["[", '{"a":', '["a",'])
def test_deep_json_is_error_without_recursion(sign: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        load_json(sign * 100_000)


def test_yaml_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [{{b: *a{i - 1}}}, {{c: *a{i - 1}}}]" for i in range(1, 40)]
    with pytest.raises(ValueError, match="alias"):
        from_nested(parse_yaml("\n".join(lines)))
