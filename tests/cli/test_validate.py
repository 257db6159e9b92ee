"""`trinity validate` and `trinity config`: output, exit codes, and what they leave alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from tests.common.config.conftest import MINIMAL
from tests.tiny import CHARACTERS, tiny_model
from tests.yardstick import import_seconds
from trinity.cli.config import config_app
from trinity.cli.validate import validate
from trinity.common.errors import ExitCode

app = typer.Typer()
app.command()(validate)
app.add_typer(config_app, name="config")
runner = CliRunner()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(MINIMAL)
    return tmp_path / "run.yaml"


@pytest.mark.difference("Lengths, batch sizes, modes that do not fit")
def test_a_valid_file_shows_what_follows_from_it(run_yaml: Path) -> None:
    run_yaml.write_text(MINIMAL + "  trainer_input: {experience_buffer: {path: 'sqlite:///rel/x.db'}}\n")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--schema-only"])
    assert result.exit_code == ExitCode.DONE
    assert "buffer.train_batch_size" in result.output
    assert "(batch_size (4) x repeat_times (8))" in result.output
    assert f"database file: {run_yaml.parent}/rel/x.db" in result.output
    assert result.output.rstrip().endswith("run.yaml: valid")
    assert [path.name for path in run_yaml.parent.iterdir()] == ["run.yaml"]


def test_json_lists_problems_and_derived_values(run_yaml: Path) -> None:
    arguments = ["validate", "-c", str(run_yaml), "--schema-only", "--json", "--set", "buffer.batch_sise=3"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == ExitCode.USAGE
    shown = json.loads(result.output)
    assert shown["valid"] is False
    assert shown["problems"][0] == {
        "code": "E1203",
        "severity": "error",
        "key": "buffer.batch_sise",
        "message": "unknown key `buffer.batch_sise`",
        "rule": "",
        "value": 3,
        "file": "--set #1",
        "line": None,
        "column": None,
        "suggestion": "did you mean `batch_size`?",
    }
    good = json.loads(runner.invoke(app, arguments[:5]).output)
    assert {"key": "buffer.train_batch_size", "value": 32, "reason": "batch_size (4) x repeat_times (8)"} in (
        good["stages"][0]["derived"]
    )
    assert good["stages"][0]["job"] == str(run_yaml.parent / "checkpoints" / "p" / "n")


def test_what_is_not_available_yet_is_an_error_or_a_warning(run_yaml: Path) -> None:
    strict = runner.invoke(app, ["validate", "-c", str(run_yaml), "--set", "explorer.rollout_model.engine_type=sglang"])
    assert strict.exit_code == ExitCode.USAGE
    assert "use --set explorer.rollout_model.engine_type=torch" in strict.output
    soft = runner.invoke(
        app, ["validate", "-c", str(run_yaml), "--schema-only", "--set", "explorer.rollout_model.engine_type=sglang"]
    )
    assert soft.exit_code == ExitCode.DONE
    assert "warning[E1900]" in soft.output


def test_a_missing_model_is_a_problem_of_the_machine(run_yaml: Path) -> None:
    result = runner.invoke(app, ["validate", "-c", str(run_yaml)])
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert "E3101" in result.output
    assert "run.yaml:4:3" in result.output


def _model(folder: Path) -> Path:
    """Make a folder that looks complete to a check that loads nothing."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 3, "hidden_size": 2})
    )
    Tokenizer(WordLevel({"a": 0, "b": 1, "<pad>": 2}, unk_token="a")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "<pad>", "chat_template": "{{ messages[0].content }}"})
    )
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}
    ).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(24))
    return folder


def test_a_family_that_the_engine_does_not_serve_is_named(tmp_path: Path, run_yaml: Path) -> None:
    config = _model(tmp_path / "model") / "config.json"
    config.write_text(config.read_text().replace('"llama"', '"zamba2"'))
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1", "response": "2"}\n')
    run_yaml.write_text(MINIMAL.replace("/models/tiny", "model").replace("data.jsonl", "train.jsonl"))

    def codes(*words: str) -> list[tuple[str, str]]:
        arguments = ["validate", "-c", str(run_yaml), "--json", "--set", "cluster.gpu_per_node=0", *words]
        return [(p["code"], p["key"]) for p in json.loads(runner.invoke(app, arguments).output)["problems"]]

    assert codes() == [("E5604", "model.model_path")]
    assert codes("--set", "explorer.rollout_model.engine_type=vllm") == []


def test_the_folder_of_the_critic_is_looked_at_like_that_of_the_model(tmp_path: Path, run_yaml: Path) -> None:
    tiny_model(tmp_path / "policy")
    tiny_model(tmp_path / "good", seed=3)
    (tmp_path / "good" / "tokenizer.json").unlink()
    tiny_model(tmp_path / "small", characters="0123456789")
    tiny_model(tmp_path / "other", characters=CHARACTERS[::-1])
    two = AutoModelForSequenceClassification.from_pretrained(tmp_path / "policy", num_labels=2)
    two.save_pretrained(tmp_path / "two")
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n')
    text = MINIMAL.replace("/models/tiny", "policy\n  critic_model_path: CRITIC").replace("data.jsonl", "train.jsonl")

    def codes(folder: str, algorithm: str = "ppo") -> list[tuple[str, str]]:
        run_yaml.write_text(f"{text.replace('CRITIC', folder)}algorithm: {{algorithm_type: {algorithm}}}\n")
        arguments = ["validate", "-c", str(run_yaml), "--json", "--set", "cluster.gpu_per_node=0"]
        problems = json.loads(runner.invoke(app, arguments).output)["problems"]
        return [(p["code"], p["key"]) for p in problems]

    key = "model.critic_model_path"
    assert codes("good") == []
    assert codes("nowhere") == [("E3101", key)]
    assert codes("small") == codes("other") == [("E3121", key)]
    assert codes("two") == [("E3120", key)]
    assert codes("nowhere", "grpo") == [("W1813", key)], "without a critic the folder is not looked at"


def test_the_folder_of_the_reward_model_is_looked_at(tmp_path: Path, run_yaml: Path) -> None:
    tiny_model(tmp_path / "policy")
    tiny_model(tmp_path / "mute", chat_template=None)
    for name, labels in (("mute", 1), ("two", 2)):
        made = AutoModelForSequenceClassification.from_pretrained(tmp_path / "policy", num_labels=labels)
        made.save_pretrained(tmp_path / name)
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n')
    text = MINIMAL.replace("/models/tiny", "policy").replace("data.jsonl", "train.jsonl")
    section = "trainer.trainer_config.reward_model"

    def codes(path: str, *more: str) -> list[tuple[str, str]]:
        run_yaml.write_text(text)
        settings = ("cluster.gpu_per_node=0", f"{section}.enable=true", f"{section}.model.path={path}", *more)
        words = [word for setting in settings for word in ("--set", setting)]
        problems = json.loads(runner.invoke(app, ["validate", "-c", str(run_yaml), "--json", *words]).output)[
            "problems"
        ]
        return [(p["code"], p["key"]) for p in problems]

    key = f"{section}.model.path"
    assert codes("nowhere") == [("E3101", key)]
    assert codes("mute") == []
    assert codes("policy") == codes("two") == [("E3122", key)]
    assert codes("mute", f"{section}.model.input_tokenizer=policy") == [("E3107", key)]


def test_the_folders_of_auxiliary_models_are_looked_at_and_the_teachers_vocabulary(
    tmp_path: Path, run_yaml: Path
) -> None:
    tiny_model(tmp_path / "policy")
    tiny_model(tmp_path / "good", "qwen2", seed=3, chat_template=None)
    tiny_model(tmp_path / "other", characters=CHARACTERS[::-1])
    (tmp_path / "train.jsonl").write_text('{"prompt": "1+1=", "response": "2"}\n')
    text = MINIMAL.replace("/models/tiny", "policy").replace("data.jsonl", "train.jsonl")

    def codes(folder: str, algorithm: str = "jsd") -> list[tuple[str, str]]:
        models = f"explorer: {{auxiliary_models: [{{model_path: {folder}}}]}}"
        run_yaml.write_text(f"{text}algorithm: {{algorithm_type: {algorithm}}}\n{models}\n")
        arguments = ["validate", "-c", str(run_yaml), "--json", "--set", "cluster.gpu_per_node=0"]
        problems = json.loads(runner.invoke(app, arguments).output)["problems"]
        return [(p["code"], p["key"]) for p in problems]

    key = "explorer.auxiliary_models[0].model_path"
    assert codes("good") == [] and codes("good", "grpo") == []
    assert codes("nowhere") == codes("nowhere", "grpo") == [("E3101", key)]
    assert codes("other") == [("E1882", key)]
    assert codes("other", "grpo") == [], "a judge may have another vocabulary"


def test_a_template_that_is_missing_or_wrong_is_named_with_its_key(run_yaml: Path, tmp_path: Path) -> None:
    arguments = ["validate", "-c", str(run_yaml), "--set", f"model.model_path={_model(tmp_path / 'model')}", "--set"]
    missing = runner.invoke(app, [*arguments, "model.chat_template_path=none.jinja"])
    assert missing.exit_code == ExitCode.ENVIRONMENT
    assert "error[E3109]: chat_template_path none.jinja cannot be read" in missing.output
    assert "--set #2" in missing.output
    wrong = runner.invoke(app, [*arguments, "model.custom_chat_template='{% if %}'", "--json"])
    found = {p["code"]: p["key"] for p in json.loads(wrong.output)["problems"]}
    assert found["E3109"] == "model.custom_chat_template"


def test_an_adapter_that_is_missing_is_named_before_anything_is_loaded(run_yaml: Path, tmp_path: Path) -> None:
    adapter = f"model.lora_configs=[{{path: '{tmp_path / 'none'}'}}]"
    arguments = ["--set", f"model.model_path={_model(tmp_path / 'model')}", "--set", adapter]
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), *arguments])
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert "error[E3118]: model.lora_configs[0].path" in result.output and "--set #2" in result.output
    assert "has no adapter_config.json and no adapter_model.safetensors" in " ".join(result.output.split())


def test_data_that_lack_the_column_are_a_problem_of_the_data(run_yaml: Path, tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    arguments = ["validate", "-c", str(run_yaml), "--set", f"model.model_path={model}"]
    result = runner.invoke(app, arguments)
    assert result.exit_code == ExitCode.DATA, result.output
    assert "E4004" in result.output
    names = ["--set", "buffer.explorer_input.taskset.format={prompt_key: question, response_key: answer}"]
    assert runner.invoke(app, [*arguments, *names]).exit_code == ExitCode.DONE


def test_a_root_that_is_a_file_cannot_hold_the_job(run_yaml: Path) -> None:
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--set", f"checkpoint_root_dir={run_yaml}"])
    assert "E3601" in result.output
    assert "is not a folder" in result.output


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("model.model_path", "model.model_path"),
        ("buffer.explorer_input.taskset.path", "buffer"),
        ("checkpoint_root_dir", "checkpoint_root_dir"),
    ],
)
def test_a_path_that_the_system_refuses_is_a_problem_and_no_traceback(
    run_yaml: Path, tmp_path: Path, key: str, place: str
) -> None:
    words = ["validate", "-c", str(run_yaml), "--json", "--set", f"model.model_path={_model(tmp_path / 'model')}"]
    result = runner.invoke(app, [*words, "--set", f"{key}={'x' * 5000}"])
    assert result.exit_code in (ExitCode.ENVIRONMENT, ExitCode.DATA), result.output
    assert [p for p in json.loads(result.output)["problems"] if p["key"].startswith(place) and p["severity"] == "error"]


def test_text_that_is_no_yaml_is_reported_once(run_yaml: Path) -> None:
    run_yaml.write_text("a: [\n")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml)])
    assert result.exit_code == ExitCode.USAGE
    assert result.output.count("error[E1001]") == 1
    assert result.output.rstrip().endswith("run.yaml: 1 error")


def test_plugins_are_known_in_both_spellings(run_yaml: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "mine.py").write_text('@WORKFLOWS.register_module("my_workflow")\nclass A: ...\n')
    run_yaml.write_text(MINIMAL.replace("math_workflow", "my_workflow"))
    for flag in ("--plugin-dir", "--plugin_dir"):
        result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--schema-only", flag, str(folder)])
        assert result.exit_code == ExitCode.DONE
    (folder / "deep").mkdir()
    (folder / "mine.py").rename(folder / "deep" / "mine.py")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--schema-only", "--plugin-dir", str(folder)])
    assert "W1701" in result.output, "a run does not load the files of subfolders"
    (folder / "bad.py").write_text("def f(:\n")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--plugin-dir", str(folder)])
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert "E3902" in result.output and f"{folder}/bad.py:1 cannot be imported" in result.output


def test_config_show_names_origins(run_yaml: Path) -> None:
    result = runner.invoke(app, ["config", "show", "-c", str(run_yaml), "--origin", "--set", "seed=7"])
    assert result.exit_code == ExitCode.DONE
    lines = result.output.splitlines()
    assert "seed = 7  <- --set #1" in lines
    assert f"buffer.batch_size = 4  <- {run_yaml}:7" in lines
    assert "explorer.max_timeout = 1800.0  <- default" in lines
    as_json = runner.invoke(app, ["config", "show", "-c", str(run_yaml), "--origin", "--json"])
    values = {row["key"]: row for row in json.loads(as_json.output)[0]["values"]}
    assert values["buffer.train_batch_size"]["origin"] == ["derived: batch_size (4) x repeat_times (8)"]


def test_config_show_hides_secrets_and_reports_errors(run_yaml: Path) -> None:
    run_yaml.write_text(MINIMAL + "monitor: {monitor_args: {api_key: canary-7734}}\nnme: 1\n")
    result = runner.invoke(app, ["config", "show", "-c", str(run_yaml)])
    assert result.exit_code == ExitCode.USAGE
    assert "canary-7734" not in result.output
    assert "error[E1203]" in result.output
    run_yaml.write_text("")
    assert "E1002" in runner.invoke(app, ["config", "show", "-c", str(run_yaml)]).output


def test_config_schema_is_json_schema() -> None:
    result = runner.invoke(app, ["config", "schema"])
    assert result.exit_code == ExitCode.DONE
    assert json.loads(result.output)["title"] == "Trinity configuration"


PROBE = """
import sys, time
from pathlib import Path
began = time.process_time()
from trinity.launch.validation import check
plan, problems = check(Path(sys.argv[1]))
took = time.process_time() - began
heavy = [name for name in ("torch", "transformers", "datasets", "ray", "vllm") if name in sys.modules]
print(took, heavy, len(problems))
"""


def test_validate_is_quick_and_imports_nothing_heavy(run_yaml: Path, tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1", "response": "2"}\n')
    run_yaml.write_text(MINIMAL.replace("/models/tiny", str(model)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(run_yaml)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=True,
    )
    took, rest = done.stdout.split(" ", 1)
    assert rest.strip() == "[] 0"
    assert float(took) < max(1.5, 8 * import_seconds())


def _trained_on(tmp_path: Path, algorithm: str, row: dict[str, str], **columns: str) -> list[str]:
    """Write a dataset and a file that trains on it; return the arguments that validate it."""
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 3)
    head = MINIMAL.partition("buffer:")[0]
    buffer = {"path": "rows.jsonl", "format": columns}
    (tmp_path / "run.yaml").write_text(
        f"{head}mode: train\nalgorithm: {{algorithm_type: {algorithm}}}\nbuffer:\n  train_batch_size: 2\n"
        f"  trainer_input: {{experience_buffer: {json.dumps(buffer)}}}\n"
    )
    return ["validate", "-c", "run.yaml", "--set", f"model.model_path={tmp_path / 'model'}"]


def test_pairs_are_looked_at_before_the_run(run_yaml: Path, tmp_path: Path) -> None:
    _model(tmp_path / "model")
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    assert runner.invoke(app, _trained_on(tmp_path, "dpo", row)).exit_code == ExitCode.DONE
    equal = runner.invoke(app, _trained_on(tmp_path, "dpo", row | {"rejected": "2"}))
    assert equal.exit_code == ExitCode.DATA
    assert "error[E4022]" in equal.output and "rows.jsonl:1: rejected: is equal to chosen" in equal.output
    one_side = runner.invoke(app, _trained_on(tmp_path, "dpo", {"prompt": "1+1=", "chosen": "2"}))
    assert (
        one_side.exit_code == ExitCode.DATA and "E4004" in one_side.output and "columns: chosen, p" in one_side.output
    )


def test_a_template_is_needed_for_conversations_only(run_yaml: Path, tmp_path: Path) -> None:
    model = _model(tmp_path / "model")
    (model / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    row = {"prompt": "1+1=", "response": "2"}
    assert runner.invoke(app, _trained_on(tmp_path, "cpt", row)).exit_code == ExitCode.DONE
    without = runner.invoke(app, _trained_on(tmp_path, "sft", row))
    assert without.exit_code == ExitCode.ENVIRONMENT and "error[E3107]" in without.output
    assert runner.invoke(app, _trained_on(tmp_path, "sft", row, chat_template="{{ 1 }}")).exit_code == ExitCode.DONE
    wrong = runner.invoke(app, [*_trained_on(tmp_path, "sft", row, chat_template="{% if %}"), "--json"])
    found = {p["code"]: p["key"] for p in json.loads(wrong.output)["problems"]}
    assert found == {"E3109": "buffer.trainer_input.experience_buffer.format.chat_template"}


def test_the_loss_of_pairs_counts_pairs(run_yaml: Path, tmp_path: Path) -> None:
    row = {"prompt": "1+1=", "chosen": "2", "rejected": "3"}
    arguments = [*_trained_on(tmp_path, "dpo", row)[1:3], "--effective-loss", "--set"]
    result = runner.invoke(app, ["config", "show", *arguments, "algorithm.policy_loss_fn_args.sft_coef=0.5"])
    assert "P = mean over the pairs of l(x)" in result.output, result.output
    assert "plus 0.5 times the mean over the pairs of the chosen response's mean of -logprob" in result.output
    assert "2 pairs in mini-batches of 2" in result.output
    assert "logprob, ref_logprob and entropy at temperature 1" in result.output
    assert "reference: yes, the policy loss dpo reads it" in result.output


@pytest.mark.parametrize(("row", "code"), [(None, "E4001"), ({"question": "1+1="}, "E4004")])
def test_the_demonstrations_of_a_mixed_run_are_looked_at(run_yaml: Path, row: dict[str, str] | None, code: str) -> None:
    form = "format: {prompt_key: question, response_key: answer}"
    experts = f"  trainer_input: {{auxiliary_buffers: {{sft_dataset: {{path: experts.jsonl, {form}}}}}}}\n"
    run_yaml.write_text(f"{MINIMAL}{experts}algorithm: {{algorithm_type: mix}}\n")
    if row is not None:
        (run_yaml.parent / "experts.jsonl").write_text(json.dumps(row) + "\n")
    result = runner.invoke(app, ["validate", "-c", str(run_yaml), "--json"])
    found = [(p["code"], p["key"]) for p in json.loads(result.output)["problems"]]
    assert (code, "buffer.trainer_input.auxiliary_buffers.sft_dataset.path") in found
