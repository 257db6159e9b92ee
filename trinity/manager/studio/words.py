"""The words of the studio, in English and Chinese."""

from __future__ import annotations

from trinity.manager.language import in_language
from trinity.summary.words import Text

ESSENTIAL = {
    "project": Text("Project", "项目"),
    "name": Text("Name of the run", "运行名称"),
    "mode": Text("What is started", "启动什么"),
    "model.model_path": Text("Model", "模型"),
    "algorithm.algorithm_type": Text("Algorithm", "算法"),
    "buffer.explorer_input.taskset.path": Text("Tasks", "任务集"),
    "buffer.explorer_input.taskset.format.prompt_key": Text("Column of the prompt", "提示所在列"),
    "buffer.explorer_input.taskset.format.response_key": Text("Column of the answer", "答案所在列"),
    "buffer.explorer_input.default_workflow_type": Text("Workflow", "工作流"),
    "buffer.explorer_input.default_reward_fn_type": Text("Reward function", "奖励函数"),
    "checkpoint_root_dir": Text("Folder of all runs", "所有运行的文件夹"),
}
"""Fields of the beginner's mode that every run has to say, with a label."""

IMPORTANT = {
    "algorithm.repeat_times": Text("Rollouts per task", "每个任务的 rollout 数"),
    "buffer.batch_size": Text("Tasks per explore step", "每个探索步的任务数"),
    "buffer.total_epochs": Text("Passes over the tasks", "任务集遍数"),
    "buffer.total_steps": Text("Explore steps", "探索步数"),
    "algorithm.optimizer.lr": Text("Learning rate", "学习率"),
    "model.max_prompt_tokens": Text("Longest prompt", "最长提示"),
    "model.max_response_tokens": Text("Longest response", "最长回复"),
    "model.max_model_len": Text("Longest sequence", "最长序列"),
    "model.temperature": Text("Temperature", "温度"),
    "explorer.rollout_model.engine_type": Text("Inference engine", "推理引擎"),
    "explorer.eval_interval": Text("Steps between evaluations", "评测间隔步数"),
    "trainer.save_interval": Text("Steps between checkpoints", "检查点间隔步数"),
    "synchronizer.sync_interval": Text("Steps between new weights", "权重同步间隔步数"),
    "monitor.monitor_type": Text("Where metrics go", "指标去向"),
}
"""Fields of the beginner's mode that are worth a look, with a label."""

WORDS = {
    "title": Text("Trinity studio", "Trinity 工作台"),
    "language": Text("Language", "语言"),
    "page": Text("Page", "页面"),
    "page_configure": Text("Configure", "配置"),
    "page_runs": Text("Runs", "运行"),
    "page_compare": Text("Compare", "对比"),
    "form": Text("Mode", "模式"),
    "form_beginner": Text("Beginner", "初学者"),
    "form_expert": Text("Expert", "专家"),
    "essential": Text("Essential", "基本配置"),
    "important": Text("Important", "重要配置"),
    "part": Text("Part", "部分"),
    "part_model": Text("Model", "模型"),
    "part_buffer": Text("Buffer", "缓冲区"),
    "part_explorer": Text("Explorer and Synchronizer", "Explorer 和 Synchronizer"),
    "part_trainer": Text("Trainer", "Trainer"),
    "find": Text("Find a key", "查找配置项"),
    "find_help": Text(
        "A part of its name or of its meaning; all parts are searched.", "名称或含义的一部分；搜索所有部分。"
    ),
    "top_level": Text("Top level", "顶层"),
    "own": Text("Registered parameters", "注册的参数"),
    "file": Text("YAML file", "YAML 文件"),
    "load": Text("Load", "载入"),
    "save": Text("Save", "保存"),
    "replace": Text("Replace what the file holds", "覆盖文件已有内容"),
    "new": Text("Start over", "重新开始"),
    "start": Text("Start the run", "启动运行"),
    "yaml": Text("YAML", "YAML"),
    "memory": Text("Estimate the memory", "估计内存"),
    "memory_help": Text(
        "By process and part, from the sizes of the model; nothing is loaded.",
        "按进程和部分，由模型大小算出；不载入任何东西。",
    ),
    "memory_host": Text("All processes together: {need} of {have}.", "所有进程合计：{need}，共有 {have}。"),
    "memory_gpus": Text("All GPUs together: {need}.", "所有 GPU 合计：{need}。"),
    "process": Text("Process", "进程"),
    "differences": Text("Different from the defaults", "与默认值的差异"),
    "key": Text("Key", "配置项"),
    "value": Text("Value", "值"),
    "default": Text("Default", "默认值"),
    "computed": Text("Computed", "推导出的值"),
    "reason": Text("Reason", "原因"),
    "problems_elsewhere": Text("Problems of other keys", "其他配置项的问题"),
    "valid": Text("Valid: a run can start.", "有效：可以启动运行。"),
    "num_errors": Text("Errors: {errors}, warnings: {warnings}.", "错误：{errors}，警告：{warnings}。"),
    "unfinished": Text("To be corrected first: {names}.", "请先修正：{names}。"),
    "no_file": Text("Name a YAML file first.", "请先写明 YAML 文件。"),
    "loaded": Text("{file} was read.", "已读取 {file}。"),
    "loses_comments": Text(
        "{file} has comments, which are not kept when it is saved from here.",
        "{file} 中有注释，从这里保存时不会保留。",
    ),
    "translated": Text(
        "{file} is in another tool's words; here is what it means. Save it under another name.",
        "{file} 使用其他工具的写法；这里是翻译后的内容。请另存为其他名称。",
    ),
    "saved": Text("{file} was written.", "已写入 {file}。"),
    "started": Text("The run was started; what it prints is in {file}.", "运行已启动；其输出在 {file}。"),
    "starting": Text("The run is starting.", "运行正在启动。"),
    "folder": Text("Folder", "文件夹"),
    "folder_help": Text("Runs in it and below it are shown.", "显示其中及其下的运行。"),
    "no_runs": Text("There are no runs in this folder or below it.", "此文件夹及其下没有运行。"),
    "run": Text("Run", "运行"),
    "compared": Text("Compared runs", "对比的运行"),
    "status": Text("State", "状态"),
    "step": Text("Step", "步"),
    "curves": Text("Curves", "曲线"),
    "no_curves": Text("No metrics yet.", "尚无指标。"),
    "health": Text("Health", "健康状况"),
    "healthy": Text("Nothing was left out or done again.", "没有内容被略去或重做。"),
    "silent": Text(
        "It runs, but has written nothing for {seconds} seconds.", "它在运行，但已有 {seconds} 秒没有写入任何内容。"
    ),
    "planned": Text("Step", "步"),
    "planned_help": Text("Steps that are done, of those that are planned.", "已完成的步数与计划的步数。"),
    "left": Text("Time left", "剩余时间"),
    "left_help": Text("Minutes and seconds, at the pace of the last 50 steps.", "分和秒，按最近 50 步的速度计算。"),
    "trained_speed": Text("Trained tokens/s", "训练 token/秒"),
    "trained_speed_help": Text(
        "Tokens of the last training step, divided by its seconds.", "最近一个训练步的 token 数除以秒数。"
    ),
    "sampled_speed": Text("Sampled tokens/s", "采样 token/秒"),
    "sampled_speed_help": Text(
        "Tokens that the last explore step sampled, divided by its seconds.", "最近一个探索步采样的 token 数除以秒数。"
    ),
    "staleness": Text("Staleness", "滞后"),
    "staleness_help": Text(
        "Training steps between the weights that sampled and those that learn; 0 where they are the same.",
        "采样的权重与学习的权重之间相差的训练步；相同时为 0。",
    ),
    "mismatch": Text("Mismatch", "引擎偏差"),
    "mismatch_help": Text(
        "Engine against trainer on the same weights: the mean difference of log-probabilities, in nats per token.",
        "同一权重下引擎与训练器的差：对数概率之差的平均值，单位为每 token 的 nat。",
    ),
    "weights": Text("weights", "权重"),
    "log": Text("What it printed last", "最近的输出"),
    "stop": Text("Stop", "停止"),
    "stop_now": Text("End at once (the step is lost)", "立即结束（丢失当前步）"),
    "stopping": Text("It was asked to stop, and ends its step first.", "已请求停止，会先完成当前步。"),
    "resume": Text("Resume", "继续"),
    "resumed": Text("The run continues; what it prints is in {file}.", "运行继续；其输出在 {file}。"),
    "ended_badly": Text("{file}: the run ended with exit status {status}.", "{file}：运行以退出码 {status} 结束。"),
    "settings": Text("Settings that differ", "不同的设置"),
    "same_settings": Text("All settings are the same.", "所有设置都相同。"),
    "choose_two": Text("Choose two runs or more.", "请选择两个或更多运行。"),
    "reward": Text("reward", "奖励"),
    "loss": Text("loss", "损失"),
    "length": Text("tokens of a response", "回复的 token 数"),
    "evaluation": Text("evaluation", "评测"),
    "time": Text("Seconds by part", "各部分秒数"),
    "checkpoints": Text("Checkpoints", "检查点"),
}

_ALL = WORDS | ESSENTIAL | IMPORTANT


def word(name: str, **values: object) -> str:
    """Return a text of the page in the language that is chosen.

    Args:
        name: of the text, or the key of a field with a label.
        values: of the places in its braces.
    """
    return in_language(_ALL[name]).format(**values)
