"""Run folders and the metrics log: what is written, what is refused, what a resume keeps."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from file_limits import files_of_at_most
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mem1
from mem1.configuration import Config, fingerprint, load_toml
from mem1.errors import UserError
from mem1.run_folder import RunFolder, given_warnings, pin_model, portable, read_metrics, read_resolved, sampled_by
from mem1.training.monitoring.metrics_log import MetricsLog
from mem1.training.monitoring.writers import Writers


class Optimizer(Config):
    rate: float = 1
    warm_up: int | None = None


class Run(Config):
    steps: int = 10
    optimizer: Optimizer = Optimizer()
    display: str = "rich"


def tensorboard(folder: Path) -> Writers:
    return Writers(["tensorboard"], folder, config={}, tell=lambda step, name, text: pytest.fail(text))


COMMAND = ["mem1", "train", "/home/me/recipes/quick.toml", "--out", "runs/a", "model=/data/models/tiny"]


def create(path: Path, config: Config | None = None) -> RunFolder:
    return RunFolder.create(path, config or Run(), command=COMMAND)


def test_a_new_run_writes_its_resolved_configuration(tmp_path: Path) -> None:
    run = create(tmp_path / "runs" / "a", Run(steps=3, optimizer=Optimizer(rate=0.5)))
    assert load_toml(run.config, Run) == Run(steps=3, optimizer=Optimizer(rate=0.5))
    assert run.config.read_text() == 'steps = 3\ndisplay = "rich"\n\n[optimizer]\nrate = 0.5\n'


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("/home/me/a=b/policy", "policy"),
        ("--model=/home/me/a=b", "--model=a=b"),
        ("x={a=1,b=/home/me/c}", "x={a=1,b=c}"),
    ],
)
def test_a_folder_of_this_machine_is_cut_whatever_its_name(argument: str, told: str) -> None:
    assert portable(argument) == told


def test_a_new_run_writes_versions_and_command_but_no_path_of_the_machine(tmp_path: Path) -> None:
    create(tmp_path / "a")
    resolved = json.loads((tmp_path / "a" / "resolved.json").read_text())
    assert resolved["command"] == ["mem1", "train", "quick.toml", "--out", "runs/a", "model=tiny"]
    assert resolved["fingerprint"] == fingerprint(Run())
    assert resolved["versions"]["mem1"] == mem1.__version__
    assert resolved["versions"]["python"].startswith("3.")


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    assert create(tmp_path).config.is_file()


def test_leftovers_of_a_kill_before_the_run_began_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.partial-0123abcd").write_text("ste")
    assert load_toml(create(tmp_path).config, Run) == Run()


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path: Path) -> None:
    create(tmp_path, Run(steps=3))
    with pytest.raises(
        UserError, match=r"exists and is not empty; continue .* with --resume .*, or start .* another --out"
    ):
        create(tmp_path, Run(steps=4))
    assert load_toml(tmp_path / "config.toml", Run).steps == 3


def test_a_folder_with_something_else_is_told_apart_from_a_run(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds no run \(config.toml is missing\); give another --out"):
        create(tmp_path)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(UserError, match="is a file; give the run a folder"):
        create(tmp_path / "a")
    with pytest.raises(UserError, match="a is a file; give the run a folder"):
        create(tmp_path / "a" / "b")
    with pytest.raises(UserError, match="cannot be made"):
        create(tmp_path / ("long" * 100))


def test_a_run_is_opened_again_under_its_own_configuration(tmp_path: Path) -> None:
    made = create(tmp_path)
    assert RunFolder.open(tmp_path, load_toml(made.config, Run)) == made
    assert made.checkpoints == tmp_path / "checkpoints"


def test_another_configuration_is_refused_with_both_values_of_each_key(tmp_path: Path) -> None:
    create(tmp_path, Run(optimizer=Optimizer(rate=0.5)))
    with pytest.raises(UserError) as caught:
        RunFolder.open(tmp_path, Run(steps=20, optimizer=Optimizer(rate=0.5, warm_up=5)))
    assert str(caught.value).splitlines()[1:3] == [
        "  optimizer.warm_up: not set in the folder, 5 now",
        "  steps: 10 in the folder, 20 now",
    ]


def test_excluded_keys_may_differ(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path, Run(display="rich"), command=COMMAND, exclude=["display"])
    assert RunFolder.open(tmp_path, Run(display="plain"), exclude=["display"]) == made
    with pytest.raises(UserError, match="display"):
        RunFolder.open(tmp_path, Run(display="plain"))


def test_a_folder_without_a_run_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no run to continue: config\.toml is missing"):
        RunFolder.open(tmp_path, Run())


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_record_of_a_run_is_named(tmp_path: Path, content: str) -> None:
    assert read_resolved(tmp_path) == {}
    (tmp_path / "resolved.json").write_text(content)
    for read in (read_resolved, sampled_by, pin_model):
        with pytest.raises(UserError, match=r"resolved\.json is not .*; repair or delete it"):
            read(tmp_path)


def test_a_warning_without_its_words_is_named(tmp_path: Path) -> None:
    (tmp_path / "warnings.jsonl").write_text('{"step": 7, "stage": "rl", "text": "x"}\n')
    with pytest.raises(UserError, match=r"warnings\.jsonl: the line of step 7 has no warning; remove that line"):
        given_warnings(tmp_path)


def test_each_step_is_one_line_of_json_and_seconds_are_kept_apart(tmp_path: Path) -> None:
    with MetricsLog(tmp_path) as log:
        log.append(1, {"reward": 0.25, "entropy": None, "endings": {"answered": 3}}, timings={"rollout": 1.5})
        log.append(2, {"reward": 0.5})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 1, "reward": 0.25, "entropy": null, "endings": {"answered": 3}}\n{"step": 2, "reward": 0.5}\n'
    )
    assert (tmp_path / "timings.jsonl").read_text() == '{"step": 1, "rollout": 1.5}\n'
    assert read_metrics(tmp_path / "metrics.jsonl")[1] == {"step": 2, "reward": 0.5}


def test_the_same_numbers_are_tensorboard_curves(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard(tmp_path)) as log:
        log.open_writers()
        for step in (1, 2):
            log.append(step, {"reward": step / 4, "endings": {"answered": 3}, "none": None}, timings={"rollout": 1.5})
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert sorted(curves.Tags()["scalars"]) == ["endings/answered", "reward", "timings/rollout"]
    assert [(e.step, e.value) for e in curves.Scalars("reward")] == [(1, 0.25), (2, 0.5)]


def test_a_resume_drops_the_steps_beyond_the_checkpoint_and_a_cut_line(tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for path, steps in ((unbroken, 4), (broken, 3)):
        path.mkdir()
        with MetricsLog(path) as log:
            for step in range(1, steps + 1):
                log.append(step, {"loss": 1 / step}, timings={"rollout": 0.1})
    with (broken / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    with MetricsLog(broken) as log:
        assert log.truncate_after(2) == 1  # step 3, in metrics and in timings
        for step in (3, 4):
            log.append(step, {"loss": 1 / step}, timings={"rollout": 0.1})
    assert (broken / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes()


def test_a_log_can_be_truncated_while_open(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        log.append(step, {"loss": 1.0})
    assert log.truncate_after(1) == 2
    log.append(2, {"loss": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_tensorboard_hides_the_steps_that_a_resume_repeats(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, tensorboard(tmp_path)) as log:
        log.open_writers()
        for step in (1, 2, 3):
            log.append(step, {"loss": 9.0})
    time.sleep(1.01 - time.time() % 1)  # TensorBoard sorts files of one second by name, "10" before "9"
    with MetricsLog(tmp_path, tensorboard(tmp_path)) as log:
        log.truncate_after(1)
        log.open_writers()
        log.append(2, {"loss": 5.0})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("loss")
    assert [(e.step, e.value) for e in events] == [(1, 9.0), (2, 5.0)]


def test_truncating_a_run_that_logged_nothing_does_nothing(tmp_path: Path) -> None:
    assert MetricsLog(tmp_path).truncate_after(5) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cut_last_line_is_left_out_when_reading(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2')
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]


@pytest.mark.parametrize("line", ["{oops}", "[1]", '{"reward": 1.0}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not a row of metrics"):
        MetricsLog(tmp_path).truncate_after(1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_not_finite_stops_the_run_and_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(UserError, match=r"step 3: loss is (nan|inf), so the run has diverged"):
        MetricsLog(tmp_path).append(3, {"loss": value})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_the_error_of_a_full_disk_names_the_file_and_what_is_intact(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    with files_of_at_most(110), pytest.raises(UserError) as caught:  # a row has 25 bytes: four fit
        for step in range(1, 1000):
            log.append(step, {"loss": 0.5})
    assert "no space left on the disk while writing the metrics of step 5" in str(caught.value)
    assert "the last checkpoint is intact: free some space and continue with --resume" in str(caught.value)
    assert log.truncate_after(2) == 2
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_device_without_space_is_a_full_disk_too(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"the metrics of step 1 in .* \(No space left on device\)"):
        MetricsLog(tmp_path).append(1, {"loss": 0.5})
