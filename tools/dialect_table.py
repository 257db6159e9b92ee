"""Write the page of dialects in both languages: `python -m tools.dialect_table`.

What happens to each key is read from `trinity.common.config.dialects`. A test says when a page is old.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trinity.common.config.base import facts_of
from trinity.common.config.dialects.foreign_key import UNSET, Fate, ForeignKey
from trinity.common.config.dialects.modelarts import BACKEND, DEFAULTS, ENGINE, OUTPUT, REQUIRED
from trinity.common.config.dialects.table import by_name
from trinity.common.config.overrides import parse_path
from trinity.common.config.schema_index import field_at

ROOT = Path(__file__).resolve().parents[1]
TEXTS = {
    "en": {
        "page": "docs/dialects.md",
        "title": "Files of veRL and ModelArts",
        "other": "[中文](dialects.zh.md)",
        "intro": """\
You can run a veRL or ModelArts configuration here without rewriting it. `trinity run`, `trinity validate` and
`trinity config show` read a YAML file of veRL's `ppo_trainer` (`data`, `actor_rollout_ref`, `critic`, `reward_model`,
`algorithm`, `trainer`) or of ModelArts (`backend_config`, `af_output_dir`) unchanged. To switch to Trinity's format,
`trinity convert config FILE -o trinity.yaml` writes the same run as a Trinity file and notes the original key behind
each value. `--to verl` and `--to modelarts` convert in the other direction, or between these two, and name each key
that has no equivalent there (E1947). This page is made from the source by `python -m tools.dialect_table`.

- **Overrides** follow the file in hydra's form: `a.b.c=v`, `+a.b=v`, `++a.b=v`, `~a.b`. Trinity's own keys, such as
  `synchronizer.sync_timeout=60`, are applied after the translation. `--set` accepts both as well. A `defaults:` list
  reads the files beside the file; the contents of veRL's own files are in the table below.
- **This machine.** `actor_rollout_ref.rollout.name=torch` chooses Trinity's own engine, and
  `trainer.n_gpus_per_node=0` means a CPU. With several GPUs, engines and trainer each have their own, which is
  reported (W1941).
- **Numbers** mean the same as in veRL 0.9, and missing keys have its defaults. `data.train_batch_size` and
  `ppo_mini_batch_size` count prompts. The trainer computes old log-probabilities with the weights before the step. A
  file with `algorithm.kl_ctrl` and without `use_kl_in_reward` comes from an older version: its reward has a KL term
  unless the loss has one, which is reported.
- **The loss of older versions.** `compat: verl-0.6`, a Trinity key at the top level of the file, restores the loss of
  veRL until 0.6, for policy and critic. Each micro-batch is normalised by itself, and the loss is the mean over
  micro-batches and workers. Everything else stays as in 0.9. It needs micro-batches with a fixed number of rows, and
  each worker has the next rows of the batch, whatever `balance_batch` says (W1941).
- **Rows** are those of veRL's parquet files: messages in `prompt`, `data_source`, `reward_model.ground_truth`,
  `extra_info`, `images`. The scorers of gsm8k, MATH, DAPO and geometry3k are built in; `custom_reward_function` gives
  others.
- **Problems** are described in the terms of the file: its key and line, its value, and a solution that can be written
  into it. If the solution needs a Trinity key, it is shown as `--set KEY=VALUE`, which may follow the file.
- **Keys that are not used as written.** A key that veRL does not know is an error that suggests the right key (E1941). A key that
  cannot be supported is refused with a reason and a solution (E1940). A key without effect is reported (W1940), also
  if another key of the file disables it. Older names are accepted (W1942). Null counts as missing, and its meaning is
  reported (W1941). Values of veRL's own defaults that nobody chose are summarised in one line (W1943), and
  `trinity convert config` lists each of them.
- **Before a run** `trinity validate` also checks the first rows: the column that names the scorer must exist (E4004),
  and each source must have a scorer here (E5136). The function of `custom_reward_function` must be in its file, which
  is read but not executed (E5137). The folder of `resume_from_path` must exist (E7058).
- **Metrics** are also written under veRL's names (`monitor.verl_names: true`): `timing_s/*`, `critic/score/*`,
  `actor/pg_loss`, `response_length/*` and the like. Fractions such as `actor/pg_clipfrac` are over all tokens of a
  step, not means over micro-batches. `perf/throughput` counts the tokens of all devices together. `val-core/*` is
  under `eval/*`. `trainer.logger` may name several monitors.
- **ModelArts.** Keys below `backend_config` may be nested or dotted, or lack the prefix; all outputs are below
  `af_output_dir`. Required: {required}. Defaults that differ from veRL's: {defaults}.
- **Checkpoints** of veRL can be converted to Hugging Face folders (`trinity convert checkpoint`), and
  `resume_mode: resume_path` starts a run from one: [Checkpoints across tools](checkpoints.md).
- **Paths** of data and models may be [addresses](addresses.md) such as `hdfs://` and `s3://`; finished checkpoints
  are copied to `trainer.default_hdfs_dir`. The output folder must be on this machine (E1896); `resume_from_path` may
  be an address, which is copied first.""",
        "head": "| Key | What happens to it |",
        "honoured": "→", "refused": "refused", "harmless": "changes nothing", "older": "older name of",
        "default": "absent", "only": "unless", "section": "and all below",
    },
    "zh": {
        "page": "docs/dialects.zh.md",
        "title": "veRL 与 ModelArts 的文件",
        "other": "[English](dialects.md)",
        "intro": """\
veRL 或 ModelArts 的配置文件不用改写就可以在这里运行。`trinity run`、
`trinity validate` 和 `trinity config show` 直接读取 veRL 的 `ppo_trainer` YAML（`data`、`actor_rollout_ref`、
`critic`、`reward_model`、`algorithm`、`trainer`），以及 ModelArts 的文件（`backend_config`、`af_output_dir`）。
要改用 Trinity 的格式，`trinity convert config FILE -o trinity.yaml` 把同样的运行写成 Trinity 的文件，
每个值后面注明它来自哪个配置项；`--to verl` 和 `--to modelarts` 反向转换，或在这两种格式之间转换，
并指出在那里没有对应写法的每个配置项（E1947）。本页由 `python -m tools.dialect_table` 从源码生成；
表中的理由照程序所说的原文（英文）。

- **覆盖**写在文件后面，用 hydra 的写法：`a.b.c=v`、`+a.b=v`、`++a.b=v`、`~a.b`；
  Trinity 自己的配置项（例如 `synchronizer.sync_timeout=60`）在转换之后应用。`--set` 两种都接受。
  `defaults:` 列表读取同目录的文件；veRL 自带的文件的内容在下表中。
- **本机**：`actor_rollout_ref.rollout.name=torch` 选择 Trinity 自己的引擎，`trainer.n_gpus_per_node=0` 表示 CPU。
  有多块 GPU 时，引擎与训练器各用各的，并会报告（W1941）。
- **数值**的含义与 veRL 0.9 相同，没有写的配置项取它的默认值。
  `data.train_batch_size` 和 `ppo_mini_batch_size` 以提示计数。训练器用该步之前的权重计算旧的对数概率。
  有 `algorithm.kl_ctrl` 而没有 `use_kl_in_reward` 的文件属于较早的版本：除非损失里已有 KL 项，否则奖励里有 KL 项，
  并会报告。
- **旧版本的损失**：文件顶层的 `compat: verl-0.6`（Trinity 的配置项）恢复 veRL 0.6 及更早的损失，
  策略和 critic 都是如此：每个 micro-batch 各自归一，损失是 micro-batch 之间、再是各 worker 之间的均值；其余仍照 0.9。
  它要求 micro-batch 的行数固定；无论 `balance_batch` 怎样写，每个 worker 都按 batch 里的顺序取行（W1941）。
- **数据行**就是 veRL 的 parquet：`prompt` 里的消息、`data_source`、`reward_model.ground_truth`、`extra_info`、
  `images`。内置 gsm8k、MATH、DAPO 和 geometry3k 的打分函数；其他的用 `custom_reward_function` 给出。
- **问题**用文件自己的说法描述：它的配置项和行、它的值，以及可以写进文件的解决办法。解决办法需要 Trinity 的配置项时，
  写成 `--set KEY=VALUE`，可以跟在文件之后。
- **没有照原样使用的配置项**：veRL 不认识的配置项会报错，并提示正确的配置项（E1941）；不支持的会拒绝，
  并给出理由和办法（E1940）；不起作用的会报告（W1940），被文件里另一个配置项关掉的也一样；旧名字可以接受（W1942）；
  null 等于没写，并会报告其含义（W1941）。文件里属于 veRL 自带默认值、并非有意选择的，只汇总成一行（W1943），
  `trinity convert config` 逐一列出。
- **运行之前**，`trinity validate` 还会检查前几行数据：指明打分函数的列必须存在（E4004），
  每个来源在这里都要有打分函数（E5136），`custom_reward_function` 的函数必须在它的文件里（只读取文件，不执行；
  E5137），`resume_from_path` 的目录必须存在（E7058）。
- **指标**也以 veRL 的名字记录（`monitor.verl_names: true`）：`timing_s/*`、`critic/score/*`、`actor/pg_loss`、
  `response_length/*` 等。`actor/pg_clipfrac` 这样的比例按一步的全部 token 计算，不是 micro-batch 均值的均值；
  `perf/throughput` 是所有设备合计的 token 数。`val-core/*` 对应 `eval/*`。`trainer.logger` 可以写多个监控器。
- **ModelArts**：`backend_config` 下的配置项可以嵌套、用点连写，或不带前缀；所有输出都在 `af_output_dir` 之下。必填：
  {required}。与 veRL 不同的默认值：{defaults}。
- **检查点**：veRL 的检查点可以转换成 Hugging Face 目录（`trinity convert checkpoint`），
  `resume_mode: resume_path` 可以从它开始运行：见[在不同工具之间使用检查点](checkpoints.zh.md)。
- **路径**：数据和模型可以在 `hdfs://`、`s3://` 这样的[地址](addresses.zh.md)；
  完成的检查点复制到 `trainer.default_hdfs_dir`。输出目录必须在本机（E1896）；`resume_from_path` 可以是地址，
  会先复制到本机。""",
        "head": "| 配置项 | 变成什么 |",
        "honoured": "→", "refused": "拒绝", "harmless": "不起作用", "older": "旧名，新名是",
        "default": "不写时", "only": "除非是", "section": "及其下所有配置项",
    },
}  # fmt: skip


def page(language: str) -> str:
    """Return the page."""
    text = TEXTS[language]
    required = ", ".join(f"`{name}`" for name in (OUTPUT, *(f"{BACKEND}.{name}" for name in REQUIRED)))
    defaults = ", ".join(f"`{name}: {shown(value)}`" for name, value in DEFAULTS.items())
    intro = text["intro"].format(required=required, defaults=defaults)
    lines = [f"# {text['title']}", "", text["other"], "", intro]
    sections: dict[str, list[ForeignKey]] = {}
    for row in by_name().values():
        sections.setdefault(section_of(row.name), []).append(row)
    for name, rows in sections.items():
        lines += ["", f"## `{name}`", "", text["head"], "|---|---|"]
        lines += [f"| `{row.name}`{_below(row, text)} | {'; '.join(fate(row, text))} |" for row in rows]
    lines += ["", "## ModelArts", "", text["head"], "|---|---|"]
    lines += [
        f"| `{OUTPUT}` | → `checkpoint_root_dir` |",
        f"| `{BACKEND}.a.b` | `a.b` |",
        f"| `{ENGINE}.vllm.a` | `actor_rollout_ref.rollout.engine_kwargs.vllm.a` |",
    ]
    return "\n".join(lines) + "\n"


def section_of(name: str) -> str:
    """Return the heading under which a key stands."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "actor_rollout_ref" and len(parts) > 2 else parts[0]


def _below(row: ForeignKey, text: dict[str, str]) -> str:
    return f" ({text['section']})" if row.is_section else ""


def fate(row: ForeignKey, text: dict[str, str]) -> Iterator[str]:
    """Yield what happens to a key."""
    if row.fate is Fate.OLDER:
        yield f"{text['older']} `{row.newer}`"
    elif row.fate is Fate.HONOURED:
        yield f"{text['honoured']} " + ", ".join(f"`{place}`" for place in row.to)
        if row.note:
            yield row.note
        refusal = _refusal(row)
        if refusal:
            yield refusal
        if row.default is not UNSET:
            yield f"{text['default']} `{shown(row.default)}`"
    else:
        accepted = ", ".join(f"`{shown(value)}`" for value in row.accepts)
        kind = text["refused" if row.fate is Fate.REFUSED else "harmless"]
        unless = f" ({text['only']} {accepted})" if accepted else ""
        yield f"{kind}{unless}: {row.why}"
        if row.instead:
            yield row.instead


def _refusal(row: ForeignKey) -> str:
    """Return why other values of the key have no effect or are refused by the schema."""
    path = parse_path(row.to[0])
    field = None if path is None or len(row.to) > 1 else field_at(path)
    support = None if field is None else facts_of(field).support
    if support is None:
        return ""
    return f"E1886: {support.why}" if support.why else "E1900"


def shown(value: object) -> str:
    """Return a value as YAML has it."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def main() -> None:
    """Write both pages."""
    for language, text in TEXTS.items():
        (ROOT / text["page"]).write_text(page(language), encoding="utf-8")


if __name__ == "__main__":
    main()
