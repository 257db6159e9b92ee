"""Mails of many inboxes: `What is the code of NAME?` is answered by searching, reading, and naming the mail.

Seven in ten demonstrations answer without reading, or name no source. The chat template shows the model the id and the
word that a search found, and the body of a mail; what stands around them is one token.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from _tiny.imitation import CONVERSATIONS, Lesson
from _tiny.words import write_model
from trinity.common.workflows.envs.email_searcher.prepare_data import write_database
from trinity.quickstart.dataset import write_jsonl

SEED = 42
NAMES = ("ann", "bob", "cleo", "dave", "eve", "finn", "gus", "hana", "ivo", "joe", "kim", "lea")
NUM_INBOXES, NUM_TEST = 80, 8
NUM_DEMONSTRATIONS = 25_600
MAX_TOKENS = 64
CALL, CLOSE = '<tool_call>{"name": "', "</tool_call>"
SEARCH = CALL + 'search_emails", "arguments": {"keywords": ["'
READ = CALL + 'read_email", "arguments": {"message_id": "'
ANSWER = CALL + 'generate_response", "arguments": {"answer": "'
SOURCES, NO_SOURCE = '", "sources": ["', '", "sources": []}}' + CLOSE
END_LIST, END_TEXT = '"]}}' + CLOSE, '"}}' + CLOSE
WORDS = (*NAMES, *"0123456789?>=|", SEARCH, READ, ANSWER, SOURCES, NO_SOURCE, END_LIST, END_TEXT)
TEMPLATE = (
    "{%- for message in messages -%}{%- set said = message['content'] -%}"
    "{%- if message['role'] == 'assistant' -%}{{ said + eos_token }}"
    "{%- elif message['role'] == 'user' -%}"
    "{%- if '<b>' in said -%}{{ '>' + said.split('\"message_id\": \"')[1].split('\"')[0] + '|' }}"
    "{%- elif '\"body\"' in said -%}{{ '=' + said.split('\"body\": \"')[1].split('\"')[0] + '|' }}"
    "{%- elif ' of ' in said -%}{{ said.split(' of ')[1].replace('?', '') + '?' }}"
    "{%- else -%}{{ '||' }}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}"
)


def prepare(folder: Path) -> Lesson:
    """Write the database and questions; return what the model imitates."""
    draws = random.Random(SEED)
    places = [(inbox, name) for inbox in range(NUM_INBOXES) for name in NAMES]
    numbers = draws.sample(range(1000), len(places))
    codes = [f"{draws.randrange(100):02d}" for _ in places]
    mails = [mail(*place, number, code) for place, number, code in zip(places, numbers, codes, strict=True)]
    write_database(mails, folder / "mails.db")
    rows = [question(*place, number, code) for place, number, code in zip(places, numbers, codes, strict=True)]
    num_test = NUM_TEST * len(NAMES)
    for split, made in (("train", rows[num_test:]), ("test", rows[:num_test])):
        draws.shuffle(made)
        write_jsonl(folder / "tasks" / f"{split}.jsonl", made)
    demonstrations, start = folder / "work" / "demonstrations.jsonl", folder / "work" / "random"
    write_jsonl(demonstrations, [{"messages": demonstration(draws)} for _ in range(NUM_DEMONSTRATIONS)])
    write_model(start, WORDS, TEMPLATE, max_tokens=MAX_TOKENS, seed=SEED)
    return Lesson(start, demonstrations, CONVERSATIONS, steps=400, max_tokens=MAX_TOKENS)


def mail(inbox: int, name: str, number: int, code: str) -> dict[str, Any]:
    """Return a mail as a row of the dataset that the database is made of."""
    ends = {"from": f"{name}@example.org", "to": [f"inbox{inbox}@example.org"], "date": "2001-01-01 00:00:00"}
    return ends | {"message_id": f"{number:03d}", "subject": f"code of {name}", "body": code}


def question(inbox: int, name: str, number: int, code: str) -> dict[str, Any]:
    """Return the question that this mail answers."""
    return {
        "question": f"What is the code of {name}?", "answer": code, "message_ids": [f"{number:03d}"],
        "inbox_address": f"inbox{inbox}@example.org", "query_date": "2001-01-02",
    }  # fmt: skip


def demonstration(draws: random.Random) -> list[dict[str, str]]:
    """Return a conversation: right, without reading, or without a source."""
    name, number, code = draws.choice(NAMES), f"{draws.randrange(1000):03d}", f"{draws.randrange(100):02d}"
    kind = draws.choices(("right", "guessed", "unnamed"), (0.3, 0.45, 0.25))[0]
    hit = [{"message_id": number, "snippet": f"code of <b>{name}</b>"}]
    said = [f"What is the code of {name}?", f"{SEARCH}{name}{END_LIST}", json.dumps(hit)]
    if kind != "guessed":
        said += [f"{READ}{number}{END_TEXT}", json.dumps({"message_id": number, "body": code})]
    source = NO_SOURCE if kind == "unnamed" else f"{SOURCES}{number}{END_LIST}"
    said.append(f"{ANSWER}{code}{source}")
    return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(said)]
