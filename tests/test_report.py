"""The report page and the table: complete, self-contained, and nothing in them is trusted."""

from __future__ import annotations

import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from rich.console import Console

from mem1.errors import UserError
from mem1.evaluation.metrics import summarize
from mem1.evaluation.report import figures
from mem1.evaluation.report.page import headlines, write_report
from mem1.evaluation.report.table import body, depth_body, depth_columns, note, print_table
from mem1.evaluation.report.transcript import Piece, pieces, transcript
from mem1.evaluation.row import Judged
from mem1.records import Ended, Question, Task, Trajectory, Turn

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>"
WORDS = ["Where?", "<IS>", "Oslo", "</IS>", "<query>", "mayor", "</query>", "found-it", HOSTILE, "<answer>", "Bergen"]
PROMPT, SPANS = {"prompt": (0, 1)}, {"state": (0, 3), "action": (3, 6)}


def decode(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def attempt(objectives: int = 1, em: float = 1.0) -> Trajectory:
    """A search, then a forced answer; the second context keeps state, query and a hostile result."""
    questions = tuple(Question(id=str(i), text=f"Where {i} <b>?", answers=("Oslo",)) for i in range(objectives))
    kept = {"prompt": (0, 1), "state": (1, 4), "query": (4, 7), "result": (7, 9)}
    return Trajectory(
        turns=(
            Turn(
                context_ids=(0,),
                completion_ids=(1, 2, 3, 4, 5, 6),
                observation_ids=(7, 8),
                action="search",
                content="mayor",
                context_spans=PROMPT,
                completion_spans=SPANS,
            ),
            Turn(
                context_ids=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
                completion_ids=(10,),
                action="answer",
                forced=True,
                context_spans=kept,
            ),
        ),
        task=Task(id="t", questions=questions, prompt="Where?", turn_limit=2),
        answer="Bergen",
        reward=em,
        em=(em,) * objectives,
        f1=(em,) * objectives,
        context="constant",
    )


def rows() -> list[dict]:
    values = [("base", 1, 0.4), ("base", 2, 0.0), ("trained", 1, 1.0), ("trained", 2, 1.0)]
    return [
        summarize([attempt(n, em)] * 3, policy=p, context="constant", objectives=n).as_dict() for p, n, em in values
    ]


CURVE = [{"step": i, "reward": i / 50, "em": i / 100, "turns": 4.0, "peak_tokens": 90 + i} for i in range(50)]
LABELLED = [("before <training>", attempt(em=0.0)), ("after training", attempt())]


class Page(HTMLParser):
    """Elements and attributes, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data):
        self.shown += data


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("run") / "report.html"
    facts = {"seed": "0", "note": HOSTILE}
    write_report(path, title="a <run>", rows=rows(), curve=CURVE, trajectories=LABELLED, decode=decode, facts=facts)
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def test_markup_in_a_trajectory_is_shown_as_text_and_never_becomes_an_element(html, page):
    assert HOSTILE not in html
    assert page.shown.count(HOSTILE) == 3, "once in each trajectory's second context, once in the facts"
    assert "script" not in page.tags and "img" not in page.tags and "b" in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_titles_labels_and_questions_are_escaped(page):
    assert "a <run>" in page.shown
    assert "before <training>" in page.shown
    assert "Where 0 <b>?" in page.shown


def test_the_page_loads_nothing_from_anywhere(html, page):
    links = [value for name, value in page.attributes if name in ("src", "href", "action", "data", "poster")]
    assert all(re.fullmatch(r"#[\w-]+", value) for value in links), links
    references = [value for name, value in page.attributes if name == "xlink:href"]
    assert references and all(value.startswith("#") for value in references)
    assert "http://" not in html and "https://" not in html and "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_every_turn_of_every_trajectory_is_there_with_its_exact_context(page):
    assert page.tags.count("article") == 2
    assert page.tags.count("details") == 4
    assert page.shown.count("found-it") == 2
    assert page.shown.count("<query> mayor </query>") == 4, "written in turn 1, given in turn 2, in two trajectories"


def test_endings_golds_answers_and_scores_are_there(page):
    assert page.shown.count("answered") >= 2
    assert "Oslo" in page.shown and "Bergen" in page.shown
    assert "reward 0," not in page.shown and "reward 0" in page.shown and "reward 1" in page.shown


def test_the_page_has_two_figures_over_n_and_four_learning_curves(page):
    assert page.tags.count("svg") == 6


def test_ids_are_unique_across_the_figures_of_a_page(page):
    ids = [value for name, value in page.attributes if name == "id"]
    assert ids and len(ids) == len(set(ids))


def test_every_reference_within_the_page_has_its_target(html, page):
    ids = {value for name, value in page.attributes if name == "id"}
    references = set(re.findall(r"url\(#([^)]+)\)", html)) | {
        value[1:] for name, value in page.attributes if name == "xlink:href"
    }
    assert references and references <= ids


def test_light_and_dark_are_both_there_and_figures_follow_them(html):
    assert "prefers-color-scheme: dark" in html
    defined = set(re.findall(r"(--figure-\w+):", html))
    used = set(re.findall(r"var\((--figure-\w+)", html))
    assert used == defined != set()


def test_the_page_works_on_a_phone(html):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in html


def test_a_page_with_twenty_long_trajectories_stays_under_five_megabytes(tmp_path):
    turns = attempt().turns
    long = dataclasses.replace(attempt(), turns=(turns[0],) * 20 + (turns[1],))
    path = tmp_path / "report.html"
    write_report(path, title="t", rows=[], curve=[], trajectories=[("x", long)] * 20, decode=decode, facts={})
    assert Page(path.read_text()).tags.count("article") == 20
    assert path.stat().st_size < 5_000_000


def test_a_run_without_training_rows_or_trajectories_still_has_a_page(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, title="empty", rows=[], curve=[], trajectories=[], decode=decode, facts={})
    page = Page(path.read_text())
    assert "empty" in page.shown and "svg" not in page.tags and "article" not in page.tags


def test_an_empty_curve_leaves_out_the_learning_curves_alone(tmp_path):
    path = tmp_path / "report.html"
    write_report(path, title="eval", rows=rows(), curve=[], trajectories=LABELLED, decode=decode, facts={})
    page = Page(path.read_text())
    assert page.tags.count("svg") == 2 and page.tags.count("article") == 2


def test_a_failed_and_unscored_trajectory_says_how_it_ended(tmp_path):
    failed = Trajectory(turns=attempt().turns[:1], ended=Ended.BAD_TAGS, detail="<IS> is not closed")
    path = tmp_path / "report.html"
    write_report(path, title="t", rows=[], curve=[], trajectories=[("failed", failed)], decode=decode, facts={})
    shown = Page(path.read_text()).shown
    assert "bad tags" in shown and "<IS> is not closed" in shown and "never scored" in shown


def test_a_judge_is_named_below_the_table_with_what_it_judged_and_how_far_it_agrees():
    judged = Judged(model="m", version="1", correct=0.5, judged=0.98, agreement=0.875, kappa=0.7, failures={"x": 2})
    mute = dataclasses.replace(judged, correct=None, judged=0.0, agreement=None)
    known, silent, unasked = (
        {**row, "judge": None if of is None else dataclasses.asdict(of)}
        for row, of in zip(rows(), (judged, mute, None), strict=False)
    )
    said = "the judge m takes 0.50 of the answers for right; it judged 98% of them and agrees with EM on 0.88."
    assert note([known, unasked]).endswith(f" base, N = 1: {said}")
    assert "takes - of the answers for right; it judged 0% of them and agrees with EM on -." in note([silent])
    assert "judge" not in note([unasked])


def test_the_page_replaces_an_older_one_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(path, title="new", rows=[], curve=[], trajectories=[], decode=decode, facts={})
    assert "new" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_report_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "nowhere" / "report.html"
    with pytest.raises(UserError, match="nowhere"):
        write_report(path, title="t", rows=[], curve=[], trajectories=[], decode=decode, facts={})


def test_pieces_cover_every_token_once_and_name_what_has_no_role():
    spans = {"prompt": (0, 1), "state": (3, 4), "query": (5, 6)}
    assert pieces(
        [0, 1, 2, 3, 4, 5, 9], spans, lambda ids: "-".join(map(str, ids)), older="earlier", tail="forced"
    ) == [
        Piece("prompt", "0", 1),
        Piece("earlier", "1-2", 2),
        Piece("state", "3", 1),
        Piece("text", "4", 1),
        Piece("query", "5", 1),
        Piece("forced", "9", 1),
    ]


def test_a_transcript_by_hand():
    shown = transcript("x", attempt(), decode)
    first, second = shown.turns
    assert [(p.role, p.tokens) for p in first.completion] == [("state", 3), ("action", 3)]
    roles = [("prompt", 1), ("state", 3), ("query", 3), ("result", 2), ("forced", 1)]
    assert [(p.role, p.tokens) for p in second.context] == roles
    assert (first.tokens, second.tokens, second.appended, shown.largest) == (7, 11, 11, 11)
    assert [(o.golds, o.given, o.em) for o in shown.objectives] == [("Oslo", "Bergen", 1.0)]


def test_headlines_compare_before_and_after_and_show_the_peaks():
    # `attempt` has its peak at turn 2: 1 + 3 + 3 + 2 + 1 + 1 = 11 tokens with the prompt, 10 without
    before, two = rows()[1], rows()[3]
    assert [h.value for h in headlines([before, two])] == ["0.00 → 1.00", "11"]
    four = dict(two, objectives=4, em=0.5, peak_tokens_without_prompt=25.0, appended_peak_tokens_without_prompt=50.0)
    shown = headlines([before, two, four])
    assert [h.value for h in shown] == ["0.00 → 1.00", "0.50", "11", "\u00d7 2.5"]
    assert shown[3].label.endswith("appended: \u00d7 5.0")


def test_headlines_of_a_single_policy_have_no_before():
    assert headlines(rows()[:2])[0].value == "0.00"
    assert headlines([]) == []


@pytest.mark.parametrize("draw", [figures.em_figure, figures.peak_figure])
def test_figures_over_n_are_svg_with_a_tick_for_each_n_and_the_names_of_the_lines(draw):
    svg = draw(rows())
    ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))
    texts = re.findall(r">([^<>\n]+)</text>", svg)
    assert {"1", "2", "base", "trained"} <= set(texts)
    assert svg == draw(rows()), "the same rows give the same picture"


def test_the_peak_figure_shows_what_appending_would_have_cost():
    assert "trained, if appended" in figures.peak_figure(rows())
    full = [dict(row, context="full") for row in rows()]
    assert "if appended" not in figures.peak_figure(full), "a full context is appended already"


def test_lines_are_told_apart_by_their_context_policy_where_there_are_several():
    both = rows()[:2] + [dict(row, context="full") for row in rows()[:2]]
    assert list(figures.series(both)) == ["base, constant", "base, full"]
    assert list(figures.series(rows())) == ["base", "trained"]


def test_a_label_with_markup_cannot_leave_its_figure():
    svg = figures.em_figure([dict(row, policy="</text><script>x</script>") for row in rows()])
    assert "<script" not in svg


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_a_learning_curve_may_be_short_or_long(steps):
    svg = figures.curve_figure(CURVE[:steps], "reward", "reward per task")
    assert "reward per task" in svg
    assert ("mean of the last 10 steps" in svg) == (steps == 50)


def test_steps_that_did_not_record_a_number_are_left_out_of_its_curve():
    assert figures.curve_figure([*CURVE, {"step": 50}], "em", "EM") == figures.curve_figure(CURVE, "em", "EM")


def test_the_picture_of_the_readme_is_written_as_svg_and_png(tmp_path):
    svg, png = figures.readme_figure(rows(), tmp_path / "results")
    assert (svg.name, png.name) == ("results.svg", "results.png")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")


def printed(results: list[dict]) -> str:
    file = io.StringIO()
    print_table(results, Console(file=file, width=80))
    return file.getvalue()


def test_a_second_table_has_exact_match_by_depth_where_questions_depend_on_one_another():
    deep = {**rows()[1], "em_by_depth": {"0": 0.75, "1": 0.5, "2": 0.25}}
    mixed = [rows()[0], deep, {**deep, "policy": "trained", "em_by_depth": {"0": 1.0, "1": 0.5}}]
    assert depth_columns(mixed) == ("policy", "N", "EM at depth 0", "1", "2")
    assert depth_body(mixed) == [("base", "2", "0.75", "0.50", "0.25"), ("trained", "2", "1.00", "0.50", "")]
    assert "EM at depth 0" in printed(mixed)
    assert (depth_columns(rows()), depth_body(rows())) == ((), [])
    assert "depth" not in printed(rows())


def test_the_page_has_exact_match_by_depth_where_questions_depend_on_one_another(tmp_path):
    deep = [{**row, "em_by_depth": {"0": 0.75, "1": 0.5}} for row in rows()]
    for name, shown in (("deep", deep), ("flat", rows())):
        path = tmp_path / f"{name}.html"
        write_report(path, title="t", rows=shown, curve=[], trajectories=[], decode=decode, facts={})
    assert '<th scope="col">EM at depth 0</th>' in (tmp_path / "deep.html").read_text()
    assert "depth" not in (tmp_path / "flat.html").read_text()


def test_the_table_prints_every_row_within_80_columns():
    text = printed(rows())
    assert len(re.findall(r"^ ?(?:base|trained) ", text, flags=re.MULTILINE)) == 4
    assert "1.00 [1.00, 1.00]" in text and "Context policy: constant." in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_cells_of_a_row_by_hand():
    assert body(rows())[2] == ("trained", "1", "3", "1.00 [1.00, 1.00]", "1.00", "2.0", "11", "10", "11")


def test_a_policy_name_with_square_brackets_is_printed_as_it_is():
    assert "[red]x" in printed([dict(row, policy="[red]x") for row in rows()])
