"""The fields of tasks, experiences and their processing.

Register your own parameters here as in the guide, with Streamlit's `st` and `CONFIG_GENERATORS`.
"""

import streamlit as st

from trinity.manager.config_registry.config_registry import CONFIG_GENERATORS

__all__ = ["CONFIG_GENERATORS", "st"]

CONFIG_GENERATORS.register_part("buffer")


def _str_for_train_batch_size() -> str:
    """Return the rule of the guide's example, for its help and its warning."""
    workers = st.session_state["trainer_gpu_num"]
    return f"`train_batch_size` must be a multiple of the number of GPUs of the trainer (`trainer_gpu_num`: {workers})."
