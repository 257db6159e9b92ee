"""The operators that run unasked, held against the source of every operator of the installed Data-Juicer."""

from __future__ import annotations

import json
import subprocess

import pytest

from trinity.common.config.sections import DataJuicerServiceConfig
from trinity.service.data_juicer.policy import ALLOWED, REFUSED, REFUSED_ARGUMENTS, refusal
from trinity.service.data_juicer.process import python_of

SUSPICIOUS = r"""
import ast, inspect, json, sys
from data_juicer.ops import OPERATORS

GUARDS = set(json.load(sys.stdin))
MODULES = {"subprocess", "importlib", "requests", "urllib", "wget", "aiohttp", "httpx", "boto3", "socket", "shutil",
           "pickle", "nltk", "spacy", "git", "multiprocessing"}
CALLS = {"eval", "exec", "compile", "open", "__import__", "system", "popen", "Popen", "check_call", "check_output",
         "import_module", "exec_module", "urlretrieve", "urlopen", "download", "snapshot_download", "check_packages",
         "load_words_asset", "load_data_with_context", "load_ops", "from_pretrained", "makedirs", "mkdir", "save"}

def words(node):
    return {each.id if isinstance(each, ast.Name) else each.attr for each in ast.walk(node)
            if isinstance(each, (ast.Name, ast.Attribute))}

def found(node, guarded):
    if isinstance(node, ast.Import):
        yield from (a.name for a in node.names if a.name.split(".")[0] in MODULES)
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES and not node.level:
        yield node.module
    if isinstance(node, ast.Call) and not guarded:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        is_own = name == "compile" and words(node.func) & {"re", "regex"}
        if name in CALLS and not is_own:
            yield name
        kinds = [k.value.value for k in node.keywords if k.arg == "model_type" and isinstance(k.value, ast.Constant)]
        if name == "prepare_model" and kinds != ["api"]:
            yield f"prepare_model {kinds}"
    asked = isinstance(node, ast.If) and bool(words(node.test) & GUARDS)
    for child in ast.iter_child_nodes(node):
        yield from found(child, guarded or (asked and child in node.body))

report = {}
for name, operator in OPERATORS.modules.items():
    own = {each.__module__ for each in inspect.getmro(operator)} - {"data_juicer.ops.base_op", "builtins"}
    trees = [ast.parse(inspect.getsource(sys.modules[module])) for module in own if module.startswith("data_juicer")]
    report[name] = sorted({word for tree in trees for word in found(tree, False)})
print("REPORT" + json.dumps(report))
"""

BEHIND_ARGUMENTS = {
    "agent_bad_case_signal_mapper": ("calibration_json_path", ["open"]),
    "remove_repeat_sentences_mapper": ("tokenizer", ["compile", "eval"]),
}
"""What allowed operators do with a refused argument only, in a function that does not ask for it."""


@pytest.fixture(scope="module")
def suspicious() -> dict[str, list[str]]:
    """What each installed operator calls or imports, where no refused argument is asked for first."""
    words = [python_of(DataJuicerServiceConfig(auto_start=True)), "-I", "-c", SUSPICIOUS]
    told = subprocess.run(words, input=json.dumps(list(REFUSED_ARGUMENTS)), capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    found: dict[str, list[str]] = json.loads(told.stdout.split("REPORT")[1])
    return found


def test_what_runs_unasked_starts_installs_fetches_and_opens_nothing(suspicious: dict[str, list[str]]) -> None:
    unasked = {name for name in suspicious if not refusal(name, {}, allowed=())}
    assert unasked == ALLOWED, "an allowed name that Data-Juicer does not have would allow what gets that name"
    found = {name: words for name, words in suspicious.items() if name in unasked and words}
    assert found == {name: words for name, (_, words) in BEHIND_ARGUMENTS.items()}
    for name, (argument, _) in BEHIND_ARGUMENTS.items():
        assert argument in refusal(name, {argument: "some"}, allowed=())


def test_what_is_refused_for_a_reason_is_there_and_runs_where_it_is_named(suspicious: dict[str, list[str]]) -> None:
    for name in suspicious.keys() - ALLOWED:
        assert name in refusal(name, {}, allowed=())
        assert refusal(name, {}, allowed=(name,)) == ""
    assert suspicious.keys() >= REFUSED.keys() - {"general_fused_op"} and not ALLOWED & REFUSED.keys()
    for name in ("vggt_mapper", "video_undistort_mapper", "image_mmpose_mapper", "python_lambda_mapper"):
        assert suspicious[name], f"the search of the sources does not see what {name} does"
