"""The memory that a run will take, by part, from `config.json`.

Nothing is loaded and nothing is started. `sizes.py` has the model's sizes, `work.py` those of the work, `training.py`
and `sampling.py` the parts of a trainer and of an engine, `places.py` the processes and devices that hold them,
`advice.py` what to change, and `speed.py` the steps per hour of an earlier run.
"""
