"""What every page needs so that all readers can read it."""

from __future__ import annotations

import streamlit as st

# Captions and the parts of YAML are too pale on a light page otherwise. What is shown again every two
# seconds would fade each time.
_STYLE = """
<style>
[data-testid="stCaptionContainer"] { opacity: 0.8 !important }
[data-testid="stCode"] .token { color: inherit !important }
[data-testid="stCode"] .token.atrule { font-weight: 600 }
[data-stale] { opacity: 1 !important; transition: none !important }
</style>
"""


def make_readable(language: str) -> None:
    """Give the page contrast, and tell screen readers its language.

    Args:
        language: `en` or `zh`.
    """
    st.html(_STYLE)
    st.html(f"<script>document.documentElement.lang = '{language}'</script>", unsafe_allow_javascript=True)
