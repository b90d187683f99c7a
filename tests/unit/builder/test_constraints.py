import pytest

from trtllm_lite.builder.constraints import broken_constraints, implied_extents
from trtllm_lite.plugins.schema import Argument, Schema

X = Argument("x", "", ("float32",), ("rows", "width"))


def _broken(constraint: str, shape: list[int | str], **attributes: int) -> list[str]:
    schema = Schema("Op", "op", "", (X,), (), (), constraints=(constraint,))
    return broken_constraints(schema, [(X, shape)], attributes)


@pytest.mark.parametrize("constraint", ["width == heads * 4", "width % 3 == 0", "width - 2 >= 10", "heads != 4"])
def test_what_holds(constraint: str) -> None:
    assert _broken(constraint, ["tokens", 12], heads=3) == []


def test_what_does_not_hold_shows_its_values() -> None:
    assert _broken("width == heads * 4", ["tokens", 13], heads=3) == ["width == heads * 4 (heads is 3, width is 13)"]


def test_dynamic_extents_are_skipped() -> None:
    assert _broken("rows < 5", ["tokens", 13]) == []


def test_equations_give_the_extents_on_their_left() -> None:
    equations = ("width == 24 + heads * 4", "depth == width * 2", "rows <= heads", "heads * 2 == pairs")
    schema = Schema("Op", "op", "", (X,), (), (), constraints=equations)
    assert implied_extents(schema, {"heads": 3}) == {"width": 36}
    assert implied_extents(schema, {"width": 5}) == {"depth": 10}


@pytest.mark.parametrize("constraint", ["width", "width == len('x')", "1 < width < 3"])
def test_other_expressions_are_refused(constraint: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        _broken(constraint, ["tokens", 2], len=1)
