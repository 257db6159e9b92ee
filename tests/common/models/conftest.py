from tests.engine.conftest import gpt2, llama  # noqa: F401 - fixtures
