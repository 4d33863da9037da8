"""TOML files, dotted overrides, and what the user is told when something is wrong with them."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Literal

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.configuration import Config, fingerprint, flatten, load_toml, plain, to_toml
from mem1.configuration.toml import dumps, tomllib  # pyright: ignore[reportPrivateImportUsage]
from mem1.errors import UserError


class Pace(Enum):
    SLOW = "slow"
    FAST = "fast"


class Sampler(Config):
    temperature: float = 1
    seed: int = 0
    limit: int | None = None


class Corpus(Config):
    path: Path
    passages: int = 3


class QA(Config):
    kind: Literal["qa"] = "qa"
    top_k: int = 3


class Shop(Config):
    kind: Literal["shop"] = "shop"
    pages: int = 2


class Stage(Config):
    steps: Annotated[int, pydantic.Field(gt=0)]


class Run(Config):
    steps: int
    name: str = "run"
    greedy: bool = False
    pace: Pace = Pace.SLOW
    betas: tuple[float, float] = (0.9, 0.999)
    sampler: Sampler = Sampler()
    judge: Sampler | None = None
    env: Annotated[QA | Shop, pydantic.Field(discriminator="kind")] = QA()
    corpora: dict[str, Corpus] = pydantic.Field(default_factory=dict)
    stages: list[Stage] = pydantic.Field(default_factory=list)

    @pydantic.model_validator(mode="after")
    def _name_is_short(self) -> Run:
        if len(self.name) > 20:
            raise ValueError("name must have at most 20 characters")
        return self


def load(tmp_path: Path, text: str, *overrides: str) -> Run:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    return load_toml(path, Run, overrides)


def mistake(tmp_path: Path, text: str, *overrides: str) -> str:
    """The message without the path in front."""
    with pytest.raises(UserError) as caught:
        load(tmp_path, text, *overrides)
    return str(caught.value).removeprefix(f"{tmp_path / 'run.toml'}: ")


def test_a_file_gives_the_model_with_its_defaults(tmp_path: Path) -> None:
    run = load(tmp_path, "steps = 40\n[sampler]\ntemperature = 0.7\n")
    assert run == Run(steps=40, sampler=Sampler(temperature=0.7, seed=0))


def test_lists_tables_enums_paths_and_unions_are_read(tmp_path: Path) -> None:
    text = """
    steps = 1
    pace = "fast"
    betas = [0.8, 0.9]
    env = { kind = "shop", pages = 5 }
    [corpora."my.set"]
    path = "data/corpus.jsonl"
    [[stages]]
    steps = 10
    """
    run = load(tmp_path, text)
    assert (run.pace, run.betas, run.env) == (Pace.FAST, (0.8, 0.9), Shop(pages=5))
    assert run.corpora == {"my.set": Corpus(path=Path("data/corpus.jsonl"))}
    assert run.stages == [Stage(steps=10)]


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("steps=7", lambda r: r.steps == 7),
        ("steps = 7", lambda r: r.steps == 7),
        ("sampler.temperature=0.5", lambda r: r.sampler.temperature == 0.5),
        ("greedy=true", lambda r: r.greedy is True),
        ("name=long run", lambda r: r.name == "long run"),
        ('name="7"', lambda r: r.name == "7"),
        ("name=a=b", lambda r: r.name == "a=b"),
        ("name=", lambda r: r.name == ""),
        ("betas=[0.1, 0.2]", lambda r: r.betas == (0.1, 0.2)),
        ("env={kind='shop', pages=4}", lambda r: r.env == Shop(pages=4)),
        ("env.kind=shop", lambda r: r.env == Shop()),
        ("judge.seed=3", lambda r: r.judge == Sampler(seed=3)),
        ("sampler.limit=null", lambda r: r.sampler.limit is None),
        ("corpora.nq.path=nq.jsonl", lambda r: r.corpora == {"nq": Corpus(path=Path("nq.jsonl"))}),
        ('corpora."a.b".path=x', lambda r: r.corpora == {"a.b": Corpus(path=Path("x"))}),
        ("stages.1.steps=9", lambda r: r.stages == [Stage(steps=1), Stage(steps=9)]),
    ],
)
def test_an_override_replaces_one_value(tmp_path: Path, override: str, read) -> None:
    text = "steps = 1\nstages = [{steps = 1}, {steps = 2}]\n[sampler]\nlimit = 4\n"
    assert not read(load(tmp_path, text)), "the override would change nothing"
    assert read(load(tmp_path, text, override))


def test_the_last_of_two_overrides_wins(tmp_path: Path) -> None:
    assert load(tmp_path, "steps = 1", "steps=2", "steps=3").steps == 3


def test_giving_one_key_of_a_section_leaves_the_others(tmp_path: Path) -> None:
    run = load(tmp_path, "steps = 1\n[sampler]\ntemperature = 0.3\nseed = 5\n", "sampler.seed=6")
    assert run.sampler == Sampler(temperature=0.3, seed=6)


@pytest.mark.parametrize(
    ("text", "override", "start", "end"),
    [
        (
            "[sampler]\ntemprature = 1.0",
            (),
            "unknown key sampler.temprature; did you mean sampler.temperature?",
            " Keys of [sampler]: temperature, seed, limit",
        ),
        ("", ("sampler.zzz=1",), "unknown key sampler.zzz (from the command line).", "temperature, seed, limit"),
        ("", ("sampler.limt=null",), "unknown key sampler.limt (from the command line)", "temperature, seed, limit"),
        ("sampelr = 2", (), "unknown key sampelr; did you mean sampler? Keys of the file: steps, name, greedy,", ""),
        ('env = {kind = "shop", top_k = 3}', (), "unknown key env.top_k.", "Keys of [env]: kind, pages"),
        (
            'env = {kind = "search", top_k = 3}',
            ("env.kind=shop",),
            "unknown key env.top_k.",
            "The key is of the file's own kind; 'env={kind=\"...\"}' replaces the section",
        ),
        (
            "judge = {sed = 3}",
            (),
            "unknown key judge.sed; did you mean judge.seed?",
            "[judge]: temperature, seed, limit",
        ),
        (
            'corpora.nq = {path = "x", passage = 1}',
            (),
            "unknown key corpora.nq.passage; did you mean corpora.nq.passages?",
            "[corpora.nq]: path, passages",
        ),
        ("stages = [{steps = 1, n = 1}]", (), "unknown key stages.0.n.", "Keys of [stages.0]: steps"),
    ],
)
def test_an_unknown_key_is_named_as_written_with_the_right_ones_and_the_closest(
    tmp_path: Path, text: str, override: tuple[str, ...], start: str, end: str
) -> None:
    message = mistake(tmp_path, "steps = 1\n" + text, *override)
    assert message.startswith(start)
    assert message.endswith(end)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=ten", 'steps (from the command line): input should be a valid integer, got "ten"'),
        ("steps=1.0", "steps (from the command line): input should be a valid integer, got 1.0"),
        ('steps="3"', 'steps (from the command line): input should be a valid integer, got "3"'),
        ("greedy=1", "greedy (from the command line): input should be a valid boolean, got 1"),
        ("steps=true", "steps (from the command line): input should be a valid integer, got true"),
        ("sampler.seed=x", 'sampler.seed (from the command line): input should be a valid integer, got "x"'),
        ("pace=medium", "pace (from the command line): input should be 'slow' or 'fast', got \"medium\""),
        ("betas=[1.0]", "betas.1"),
        ("sampler=3", "sampler (from the command line): input should be an object, got 3"),
        ("stages=[{steps=0}]", "stages.0.steps (from the command line): input should be greater than 0, got 0"),
        ("env={pages=3}", "[env] needs the key 'kind', the kind of section (from the command line)"),
        ("env.kind=x", "env (from the command line): input tag 'x' found using 'kind' does not match any of the expe"),
        ("name=012345678901234567890", "name must have at most 20 characters"),
        ("name=7", "name (from the command line): input should be a valid string, got 7; quote it: name='\"7\"'"),
    ],
)
def test_the_error_for_a_wrong_value_names_key_expectation_and_value(
    tmp_path: Path, override: str, message: str
) -> None:
    assert message in mistake(tmp_path, "steps = 1", override)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert mistake(tmp_path, "").startswith("required key steps is missing; give it in the file or as steps=value.")
    assert "required key corpora.nq.path is missing" in mistake(tmp_path, "steps = 1\n[corpora.nq]\n")


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    lines = mistake(tmp_path, "step = 1\n[sampler]\nseed = 'a'\n").splitlines()
    assert lines[0] == "3 mistakes:"
    assert [line.split()[0] for line in lines[1:]] == ["required", "sampler.seed:", "unknown"]


def test_a_list_that_lacks_what_is_wrong_in_it_is_one_mistake(tmp_path: Path) -> None:
    class Sizes(Config):
        sizes: Annotated[tuple[Annotated[int, pydantic.Field(ge=1)], ...], pydantic.Field(min_length=1)] = (2,)

    path = tmp_path / "sizes.toml"
    path.write_text("sizes = [0]")
    with pytest.raises(UserError, match=r"sizes.toml: sizes\.0: input should be greater than or equal to 1, got 0$"):
        load_toml(path, Sizes)
    path.write_text("sizes = []")
    with pytest.raises(UserError, match=r"sizes\.toml: sizes: tuple should have at least 1 item"):
        load_toml(path, Sizes)


def test_broken_toml_names_line_and_column(tmp_path: Path) -> None:
    message = mistake(tmp_path, "steps = 1\nname = oops\n")
    assert message.startswith("not valid TOML: ")
    assert "line 2, column 8" in message


def test_a_file_that_cannot_be_read_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b'name = "\xff"\n')
    for path, message in (
        ("nothing.toml", r"nothing\.toml: no such file; give the path of a TOML file"),
        (".", "cannot be read"),
        ("run.toml", r"not UTF-8 text \(byte 8\)"),
    ):
        with pytest.raises(UserError, match=message):
            load_toml(tmp_path / path, Run)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps", "'steps' is not an override; write key=value"),
        ("=3", "'=3' has no valid key before the '='"),
        ("a b=3", "'a b=3' has no valid key before the '='"),
        ("steps.more=3", "'steps.more=3': steps is a value, not a section; set steps itself"),
        ("stages.5.steps=3", "stages is a list of 1, counted from 0, without entry '5'"),
    ],
)
def test_a_malformed_override_is_a_user_error(tmp_path: Path, override: str, message: str) -> None:
    assert message in mistake(tmp_path, "steps = 1\nstages = [{steps = 1}]", override)


def test_a_configuration_is_frozen() -> None:
    run = Run(steps=1)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        run.steps = 2


def test_a_field_that_may_be_none_must_default_to_none() -> None:
    with pytest.raises(TypeError, match=r"Bad\.limit may be None, so its default must be None"):

        class Bad(Config):
            limit: int | None = 5


def test_a_sections_default_has_one_owner() -> None:
    with pytest.raises(TypeError, match=r"the default of Bad\.sampler changes Sampler\.temperature"):

        class Bad(Config):
            sampler: Sampler = Sampler(temperature=0.7)


FULL = Run(
    steps=3,
    name='a "quoted" \\ name\n\x7fü',
    betas=(1e-08, 1.0),
    judge=Sampler(temperature=2.5),
    env=Shop(pages=9),
    corpora={"my.set": Corpus(path=Path("a/b.jsonl")), "ümlaut": Corpus(path=Path("c"))},
    stages=[Stage(steps=1), Stage(steps=2)],
)


def test_a_configuration_survives_its_own_toml(tmp_path: Path) -> None:
    assert load(tmp_path, to_toml(FULL)) == FULL
    assert load(tmp_path, to_toml(Run(steps=1))) == Run(steps=1)


def test_the_written_toml_looks_written_by_hand() -> None:
    assert to_toml(Run(steps=1, stages=[Stage(steps=2)])) == (
        'steps = 1\nname = "run"\ngreedy = false\npace = "slow"\nbetas = [0.9, 0.999]\n'
        "stages = [{ steps = 2 }]\n\n"
        "[sampler]\ntemperature = 1\nseed = 0\n\n"
        '[env]\nkind = "qa"\ntop_k = 3\n\n'
        "[corpora]\n"
    )


_SCALARS = st.text() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
_VALUES = st.recursive(
    _SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(), v, max_size=3), max_leaves=8
)


@settings(max_examples=60)
@given(table=st.dictionaries(st.text(), _VALUES, max_size=4))
def test_any_table_of_plain_values_survives_toml(table: dict) -> None:
    assert tomllib.loads(dumps(table)) == table


def test_toml_has_no_null() -> None:
    with pytest.raises(TypeError, match=r"NoneType.* is not TOML serializable"):
        dumps({"a": [None]})


def test_the_fingerprint_tells_configurations_apart() -> None:
    prints = [fingerprint(Run(steps=1)), fingerprint(Run(steps=2)), fingerprint(Run(steps=1, judge=Sampler()))]
    assert len(set(prints)) == 3
    assert all(len(p) == 64 for p in prints)
    assert fingerprint(Run(steps=1)) == prints[0]


def test_the_fingerprint_is_the_same_after_a_round_trip_through_toml(tmp_path: Path) -> None:
    # Sampler.temperature is the integer 1 by default and the float 1.0 once validated.
    assert fingerprint(load(tmp_path, to_toml(Run(steps=1)))) == fingerprint(Run(steps=1))
    assert fingerprint(load(tmp_path, to_toml(FULL))) == fingerprint(FULL)


def test_excluded_keys_do_not_count() -> None:
    one, other = Run(steps=1, sampler=Sampler(seed=1)), Run(steps=2, sampler=Sampler(seed=2))
    assert fingerprint(one, exclude=["steps", "sampler.seed"]) == fingerprint(other, exclude=["steps", "sampler.seed"])
    assert fingerprint(one, exclude=["steps"]) != fingerprint(other, exclude=["steps"])
    with pytest.raises(ValueError, match="cannot exclude stepz: Run has no such key"):
        fingerprint(one, exclude=["stepz"])


def test_flattened_keys_are_dotted() -> None:
    assert flatten({"a": {"b": 1, "c.d": {"e": 2}}, "f": [], "g": {}}) == {"a.b": 1, 'a."c.d".e': 2, "f": [], "g": {}}
    assert plain(Run(steps=1))["sampler"] == {"temperature": 1, "seed": 0}
