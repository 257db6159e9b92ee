"""Why a code is an error or a warning.

An error is for what would be wrong, lost or ignored; everything else is a warning that says what is done instead.
What a code says stands where it is raised; `python -m tools.code_table` joins both to the page of the codes.
"""

from __future__ import annotations

WRONG = "wrong: the run would compute something else than what is written, or could not compute it"
LOST = "lost: something that is written, trained or measured would be lost or written over"
IGNORED = "ignored: what is written would not be done"
UNREADABLE = "unreadable: the meaning cannot be determined"
MACHINE = "machine: something that the run needs is not there"
DATA = "data: rows would be lost or misread"
FAILED = "failed: something broke during the run, and continuing would lose or invent something"
NUMBERS = "numbers: the weights would be damaged"
CHECKPOINT = "checkpoint: the run would continue from something else"
SHARED = "shared: two processes would write the same files"
SAME = "same: what is done instead, or under another name, has the same result"
IDLE = "idle: the key has no effect in this run, and nothing that it asks for is missing"
UNUSUAL = "unusual: it is done as written, and it may not be what is meant"
UNSEEN = "unseen: this cannot be decided here; the run checks it"

_OF_GROUP = {"1": WRONG, "3": MACHINE, "4": DATA, "5": FAILED, "6": NUMBERS, "7": CHECKPOINT, "8": SHARED}
_ERRORS = {
    UNREADABLE: (
        "E1001 E1002 E1003 E1004 E1005 E1006 E1007 E1008 E1009 E1010 E1011 E1012 E1401 E1402 E1403 E1404 E1405 E1601 "
        "E1602 E1604 E1701 E1815 E1943 E1944"
    ),
    IGNORED: (
        "E1203 E1204 E1205 E1703 E1807 E1816 E1831 E1837 E1843 E1844 E1857 E1858 E1859 E1885 E1886 E1900 E1940 E1941 "
        "E1952 E1953"
    ),
    LOST: "E1090 E1091 E1304 E1305 E1605 E1839 E1973",
}
_WARNINGS = {
    SAME: "W1301 W1305 W1804 W1812 W1816 W1841 W1887 W1941 W1942",
    IDLE: "W1902 W1910 W1940 W1943 W4003",
    UNUSUAL: (
        "W1303 W1306 W1501 W1603 W1813 W1823 W1832 W1835 W1903 W1911 W1946 W3108 W3111 W3407 W3702 W3904 W3905 W3909 "
        "W4014 W4030 W4040 W4041 W4042 W5808 W7030 W7059 W3812 W3813 W3814 W3820 W3821 W3832 W3834 W3842 W3113"
    ),
    UNSEEN: (
        "W1701 W1706 W3906 W3910 W5807 W3802 W3803 W3810 W3816 W3817 W3822 W3823 W3824 W3825 W3831 W3836 W3841 W3843 "
        "W3844 W3851 W3852 W3853 W3112"
    ),
}
_OWN = {code: reason for table in (_ERRORS, _WARNINGS) for reason, codes in table.items() for code in codes.split()}

# What a code says whose message is put together in the run.
MESSAGES = {
    "E1706": "… of … must be given: there is no default for it",
    "E1836": "the rows or the heads of this model cannot be shared by … ranks of a sequence",
    "E1841": "… is …, but it follows from …: …",
    "E1842": "… does not fit the mixture of rollouts and demonstrations",
    "E1844": "expert_data_ratio must be at least 0 and below 1, and leave a rollout in every batch",
    "E1849": "the layers of this model cannot be divided into … pipeline stages",
    "E1850": "… is no bound or preset of a correction: …",
    "E1852": "… does not fit policy_loss_fn …, …",
    "E1855": "the matrices of this model cannot be divided by … ranks",
    "E1856": "the model family … is not divided by matrices or layers here",
    "E1866": "the priority function … refuses its arguments: …",
    "E1871": "… names no linear layer of the model that an adapter can go into",
    "E1886": "… is refused: …",
    "E1895": "the rotary frequencies of the model would follow the length of a call: …",
    "E1896": "… is an address of …, and nothing is copied from or to such an address for this key",
    "E1941": "… is no key of …",
    "E1943": "… and … contradict each other",
    "E3103": "a file of weights is missing, torn or of a kind that may hold code: …",
    "E3125": "… asks for the load-balancing loss of its experts, which is not computed",
    "E3131": "the rule that turns the output layer's products into logits of … is not known",
    "E3224": "… is set by the engine, or by another key: …",
    "E3906": "what the class … declares is computed, and it has to be read from the source",
    "E4061": "… has no experiences of a buffer …; it has those of: …",
    "E5131": "evaluation: no rollout of the taskset … was completed; the most common reason: …",
    "E5221": "the reward cannot be taken: …",
    "E5604": "the torch engine does not serve the model family …: …",
    "E5637": "… engines answer, and explorer.min_running_model_num is …; ask again later",
    "E5663": "vLLM has not answered for … s: …",
    "E5701": "the process of a component ended: …",
    "E5803": "a model that an operator of Data-Juicer asks does not answer: …",
    "E5801": "an operator of Data-Juicer is refused: …; name it in service.data_juicer.allowed_operators to run it",
    "E5804": "… is no operator or argument that Data-Juicer has: …",
    "E7006": "checkpoint … has schema …, this version reads …; use the version of Trinity that wrote it",
    "W1706": "… of … is not given; the installed version of its package decides whether it must be",
    "W1841": "… is …, but it follows from …: …, which is used",
    "W1940": "… changes nothing here: …",
    "W1941": "… becomes …",
    "W1942": "… is an older name of …",
    "W3407": "… has no effect with cluster.runtime local",
    "W4042": "the rows of the evaluation tasksets … changed since explore step …: do not compare their metrics with "
    "those of earlier steps; restore the rows, or give them another name",
    "W3906": "what the class … declares is known only when its file is imported",
}


def reason_of(code: str) -> str:
    """Return why a code is what it is; the first word is its kind.

    Raises:
        KeyError: a warning without a reason of its own, or a group of codes that does not exist.
    """
    if code in _OWN:
        return _OWN[code]
    if code.startswith("W"):
        raise KeyError(f"{code}: a warning states its reason in trinity/common/codes.py")
    return _OF_GROUP[code[1]]
