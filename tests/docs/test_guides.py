"""The guides do what they say: their files run, their tables are what the tools write, their metrics exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.followed import STEP, follow, programs, run_lines
from tests.docs.pages import Page, page
from tests.e2e.short_run import SHORT
from tests.judge import write_judge
from tests.tiny import tiny_model
from tests.trees import merged
from tools.recipe_table import PAGES, tables, with_table
from trinity.common.config.dialects.table import row_of
from trinity.common.config.foreign import TRL
from trinity.explain.metrics import find as find_metric
from trinity.quickstart.folder import prepare

GUIDES = (
    "batch-sizes", "cluster", "coming-from", "evaluation", "faq", "glossary", "gsm8k", "install", "monitoring",
    "own-data", "quickstart", "recipes", "rewards", "sft-grpo-lora", "troubleshooting",
)  # fmt: skip
each_guide = pytest.mark.parametrize("guide", [page(f"docs/{name}.md") for name in GUIDES], ids=lambda part: part.name)


@each_guide
def test_the_metrics_of_a_guide_exist(guide: Page) -> None:
    families = "rollout|experience_pipeline|sample|actor|training|critic|response_length|time|perf"
    told = {term for term in guide.terms if re.fullmatch(rf"({families})(/\w+)+", term)}
    assert not [name for name in told if find_metric(name) is None and find_metric(f"{name}/mean") is None]


def test_the_recipes_are_what_the_estimate_computes() -> None:
    for path, table in zip(PAGES, tables(), strict=True):
        text = path.read_text(encoding="utf-8")
        assert with_table(text, table) == text, "python -m tools.recipe_table"
        assert table in text


def test_the_names_of_trl_and_verl_are_those_that_are_understood() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|", page("docs/coming-from.md").text, flags=re.MULTILINE)
    of_verl = [(name, key) for name, key in rows if "." in name]
    of_trl = [(name, key) for name, key in rows if "." not in name]
    assert len(of_trl) > 30 and len(of_verl) > 20
    assert [(name, key) for name, key in of_trl if str(TRL[name]) != key] == []
    for name, key in of_verl:
        row = row_of(name)
        assert row is not None and any(key.startswith(target) for target in row.to), (name, key)


@pytest.mark.runs("docs/sft-grpo-lora.md")
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_sft_and_then_an_adapter(tmp_path: Path) -> None:
    said = follow(page("docs/sft-grpo-lora.md"), tmp_path)
    assert "training step 6" in said["trinity status checkpoints/two-stages/grpo"]
    assert (tmp_path / "checkpoints/two-stages/grpo/global_step_6/actor/lora_adapter/adapter_config.json").exists()
    assert (tmp_path / "sums-model" / "config.json").exists()


@pytest.mark.runs("docs/quickstart.md", "trinity ")
@pytest.mark.runs("docs/running.md", "trinity quickstart", "trinity validate", "trinity run --config quickstart/")
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_the_quickstart(tmp_path: Path) -> None:
    """With its stages made short: `trinity quickstart` keeps the file that is there."""
    prepare(tmp_path / "quickstart")
    file = tmp_path / "quickstart" / "quickstart.yaml"
    tree = yaml.safe_load(file.read_text())
    for override in SHORT:
        number, *keys = re.findall(r"\w+", override.partition("=")[0])[1:]
        section = tree["stages"][int(number)]
        for key in keys[:-1]:
            section = section.setdefault(key, {})
        section[keys[-1]] = yaml.safe_load(override.partition("=")[2])
    file.write_text(yaml.safe_dump(tree))
    test = tmp_path / "quickstart" / "data" / "test.jsonl"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:16]))
    said = follow(page("docs/quickstart.md"), tmp_path, without=("make demo",))
    assert "held-out accuracy (greedy)" in said["trinity quickstart --dir quickstart"]
    written = re.findall(r"^(quickstart/\S+)", "\n".join(page("docs/quickstart.md").code("text")), flags=re.MULTILINE)
    assert len(written) == 8 and all((tmp_path / name).exists() for name in written)
    assert (tmp_path / "quickstart/checkpoints/quickstart/shorter/rft/global_step_10").exists()
    with programs() as path:  # what is finished stays as it is
        run_lines(page("docs/running.md").lines("trinity ")[:3], tmp_path, {"PATH": path})


@pytest.mark.runs("docs/gsm8k.md")
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_gsm8k_with_a_model_that_answers_in_one_word(tmp_path: Path) -> None:
    write_judge(tmp_path / "word")
    rows = [{"question": f"{n} + 1 ?", "answer": f"One more. #### {n + 1}"} for n in range(8)]
    (tmp_path / "rows").mkdir()
    for name in ("train", "test"):
        (tmp_path / "rows" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n"  # as the hub's: a subset with two splits
    for name in ("train", "test"):
        card += f"  - split: {name}\n    path: {name}.jsonl\n"
    (tmp_path / "rows" / "README.md").write_text(f"{card}---\n")
    said = follow(page("docs/gsm8k.md"), tmp_path, TRINITY_MODEL_PATH="word", TRINITY_TASKSET_PATH="rows")
    assert "training step 1" in said["trinity status checkpoints/gsm8k/grpo"]
    assert (tmp_path / "checkpoints/gsm8k/tiny/global_step_1").exists()


@pytest.mark.runs("docs/rewards.md", "bash", "python")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_rule_and_the_judge_of_the_page_on_rewards(tmp_path: Path) -> None:
    rewards = page("docs/rewards.md")
    tiny_model(tmp_path / "models" / "my-model")
    write_judge(tmp_path / "models" / "my-judge")
    (tmp_path / "data").mkdir()
    rows = [{"question": f"{n}+1=", "answer": str(n + 1), "level": "hard"} for n in range(4)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    base: dict[str, Any] = {
        "model": {"model_path": "models/my-model", "max_model_len": 64, "max_response_tokens": 16},
        "buffer": {"batch_size": 4, "explorer_input": {"taskset": {"path": "data/train.jsonl"}}},
    }
    rule, _, _, judge = (yaml.safe_load(code) for code in rewards.code("yaml"))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merged(base, rule)))
    said = follow(rewards, tmp_path)
    assert "(right 0, short 0.2, easy 0)" in said["trinity try --config run.yaml -n 4 --repeat-times 8"]
    base["buffer"]["explorer_input"]["taskset"]["format"] = {"prompt_key": "question"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(merged(base, judge)))
    (line,) = [line for line in said if line.startswith("trinity try")]
    assert "polite 1" in follow(rewards, tmp_path, only=line)[line]


FAKES = {
    "scontrol": "printf 'one\\ntwo\\n'",
    "srun": 'while [[ "$1" == -* ]]; do [ "$1" = -w ] && shift; shift; done; exec "$@"',
    "hostname": "echo 10.0.0.1",
    "ray": 'if [ "$1" = status ]; then sed -n "s/^ray start.*/ 1 node_x/p" said; exit; fi; '
    'echo "ray $*" >>said; exec /bin/sleep 60',
    "sleep": "exec /bin/sleep 0.1",
    "trinity": 'echo "trinity $*" >>said; exit 7',
}


@pytest.mark.runs("docs/cluster.md", "sh")
def test_the_script_for_slurm_starts_ray_and_then_the_run_and_ends_as_it_does(tmp_path: Path) -> None:
    """Slurm, Ray and the run are programs that write down how they are called."""
    (script,) = [code for name, _, code in STEP.findall(page("docs/cluster.md").text) if name == "grpo.sbatch"]
    (tmp_path / "grpo.sbatch").write_text(script)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text("")
    (tmp_path / "bin").mkdir()
    for name, body in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    variables = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NODELIST": "x",
    }  # fmt: skip
    done = subprocess.run(["bash", "grpo.sbatch"], cwd=tmp_path, env=variables, timeout=60, check=False)
    assert done.returncode == 7
    assert (tmp_path / "said").read_text().splitlines() == [
        "ray start --head --node-ip-address=10.0.0.1 --port=6379 --num-gpus=8 --include-dashboard=false --block",
        "ray start --address=10.0.0.1:6379 --num-gpus=8 --block",
        "trinity run --config run.yaml --set cluster.ray_address=10.0.0.1:6379 --set cluster.node_num=2",
    ]


QUANTITY = r"\d+([KMGTPE]i?|m)?"  # a number, or a text such as 500Gi
TEMPLATE = {
    "spec": {
        "containers": [
            {
                "name": str,
                "image": str,
                "workingDir": str,
                "resources": {"limits": {"*": QUANTITY}, "requests": {"*": QUANTITY}},
                "volumeMounts": [{"name": str, "mountPath": str}],
            }
        ],
        "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}, "emptyDir": {"medium": str}}],
    }
}
GROUP = {"rayStartParams": {"*": str}, "template": TEMPLATE}
COUNTS = dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), int)
# Fields of a RayJob that the page has, with their types, as the operator declares them.
SHAPE = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "backoffLimit": int,
        "rayClusterSpec": {"headGroupSpec": GROUP, "workerGroupSpecs": [GROUP | COUNTS | {"groupName": str}]},
    },
}
NEEDED = {"headGroupSpec", "template", "groupName", "minReplicas", "maxReplicas", "containers", "name", "mountPath",
          "claimName", "entrypoint", "rayStartParams"}  # fmt: skip


@pytest.mark.runs("docs/cluster.md", "apiVersion")
def test_the_job_for_kubernetes_is_a_ray_job_with_a_head_and_a_worker() -> None:
    (code,) = [code for name, _, code in STEP.findall(page("docs/cluster.md").text) if name == "rayjob.yaml"]
    job = yaml.safe_load(code)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    check_shape(job, SHAPE, "")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def check_shape(value: Any, shape: Any, path: str) -> None:
    """Check names and types of fields: an unknown one is refused by the cluster, and so is one that is missing."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), path
        for name, inner in value.items():
            assert name in shape or "*" in shape, f"{path}.{name}"
            check_shape(inner, shape.get(name, shape.get("*")), f"{path}.{name}")
        assert NEEDED & set(shape) <= set(value), (path, NEEDED & set(shape) - set(value))
    elif isinstance(shape, list):
        assert isinstance(value, list) and value, path
        for number, inner in enumerate(value):
            check_shape(inner, shape[0], f"{path}[{number}]")
    elif shape == QUANTITY:
        assert re.fullmatch(QUANTITY, str(value)), (path, value)
    else:
        assert type(value) is shape, (path, value)
