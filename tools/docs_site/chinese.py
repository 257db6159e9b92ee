"""Search in Chinese without a dictionary: every two neighbouring characters are a word, in the index and in a query."""

from __future__ import annotations

import re

from sphinx.search.en import SearchEnglish

CHARACTERS = r"[\u4e00-\u9fff]+"
SPLITTER = r"""
function splitQuery(query) {
  const found = [];
  for (const piece of query.match(/[\u4e00-\u9fff]+|[a-zA-Z0-9_]+/g) || []) {
    if (!/^[\u4e00-\u9fff]/.test(piece) || piece.length < 3) found.push(piece);
    else for (let at = 0; at + 1 < piece.length; at++) found.push(piece.slice(at, at + 2));
  }
  return found;
}
"""


class SearchByPairs(SearchEnglish):
    """English words, and pairs of Chinese characters.

    Sphinx's own class needs a dictionary of Chinese words, and finds none of them without one.
    """

    lang = "zh"
    # `language_name` stays English: by it the page finds the stemmer.
    js_splitter_code = SPLITTER

    def split(self, input: str) -> list[str]:
        """Return the words of a text, pairs of characters among them."""
        return words(input)


def words(text: str) -> list[str]:
    """Return the words of a text: `["reward", "奖励", "励函", "函数"]` for `reward 奖励函数`."""
    found: list[str] = []
    for piece in re.findall(rf"{CHARACTERS}|[a-zA-Z0-9_]+", text):
        is_chinese = re.match(CHARACTERS, piece) is not None and len(piece) > 2
        found += [piece[at : at + 2] for at in range(len(piece) - 1)] if is_chinese else [piece]
    return found
