"""Which operators of Data-Juicer the server runs unasked.

Imported by the server too, in an environment that has neither this package nor its dependencies: so it imports
nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

PROTOCOL = 3
"""Of requests and answers; client and server must have the same."""

_CHECKED = """
alphanumeric_filter average_line_length_filter character_repetition_filter general_field_filter
maximum_line_length_filter special_characters_filter specified_field_filter specified_numeric_field_filter
suffix_filter text_length_filter word_repetition_filter words_num_filter

document_deduplicator document_line_deduplicator document_minhash_deduplicator
document_minhash_deduplicator_with_uid document_simhash_deduplicator

frequency_specified_field_selector random_selector range_specified_field_selector tags_specified_field_selector
topk_specified_field_selector

agent_bad_case_signal_mapper agent_dialog_normalize_mapper agent_tool_type_mapper chinese_convert_mapper
clean_copyright_mapper clean_email_mapper clean_html_mapper clean_ip_mapper clean_links_mapper expand_macro_mapper
extract_tables_from_html_mapper fix_unicode_mapper latex_figure_context_extractor_mapper pii_redaction_mapper
punctuation_normalization_mapper remove_bibliography_mapper remove_comments_mapper remove_header_mapper
remove_long_words_mapper remove_non_chinese_character_mapper remove_repeat_sentences_mapper
remove_specific_chars_mapper remove_table_text_mapper remove_words_with_incorrect_substrings_mapper
replace_content_mapper text_chunk_mapper tool_success_tagger_mapper usage_counter_mapper
whitespace_normalization_mapper

llm_analysis_filter llm_condition_filter llm_difficulty_score_filter llm_quality_score_filter
llm_task_relevance_filter text_embd_similarity_filter

agent_insight_llm_mapper agent_skill_insight_mapper agent_tool_relevance_mapper agent_trace_coherence_mapper
calibrate_qa_mapper calibrate_query_mapper calibrate_response_mapper dialog_clarification_quality_mapper
dialog_coreference_mapper dialog_error_recovery_mapper dialog_intent_detection_mapper
dialog_memory_consistency_mapper dialog_non_repetition_mapper dialog_proactivity_mapper
dialog_sentiment_detection_mapper dialog_sentiment_intensity_mapper dialog_topic_detection_mapper
dialog_topic_shift_mapper extract_entity_attribute_mapper extract_entity_relation_mapper extract_event_mapper
extract_keyword_mapper extract_nickname_mapper extract_support_text_mapper llm_extract_mapper
optimize_prompt_mapper pair_preference_mapper relation_identity_mapper
"""

ALLOWED = frozenset(_CHECKED.split())
"""Operators that compute only on the rows that they are given, or ask a model about them (the last two blocks).

They start no program, install and fetch nothing, and open no file, unless one of `REFUSED_ARGUMENTS` is given.
"""

_CODE = "it runs code that its arguments give"
_COMMAND = "its arguments are those of a program that it starts"
_FETCHES = "it fetches from addresses that the rows name"
_INSTALLS = "it fetches programs or packages and runs them"
_SENDS = "it sends the rows to another machine"
_FILES = "it writes files"
_UNCHECKED = "it is not one of those known to compute only on the rows that they are given"

REFUSED: Mapping[str, str] = {
    "python_lambda_mapper": _CODE,
    "python_file_mapper": _CODE,
    "image_ohem_selector": _CODE,
    "general_fused_op": "it runs operators that are not looked at",
    "audio_ffmpeg_wrapped_mapper": _COMMAND,
    "video_ffmpeg_wrapped_mapper": _COMMAND,
    "download_file_mapper": _FETCHES,
    "s3_download_file_mapper": _FETCHES,
    "image_mmpose_mapper": _INSTALLS,
    "image_sam_3d_body_mapper": _INSTALLS,
    "vggt_mapper": _INSTALLS,
    "video_camera_calibration_droidcalib_mapper": _INSTALLS,
    "video_camera_pose_megasam_mapper": _INSTALLS,
    "video_depth_estimation_mapper": _INSTALLS,
    "video_hand_reconstruction_hawor_mapper": _INSTALLS,
    "video_hand_reconstruction_mapper": _INSTALLS,
    "video_undistort_mapper": _INSTALLS,
    "s3_upload_file_mapper": _SENDS,
    "human_preference_annotation_mapper": _SENDS,
    "export_to_lerobot_mapper": _FILES,
}
"""Why some operators are not among `ALLOWED`."""

_LOADS = "it loads a model with the code that comes with it"
_TOKENIZER = "it fetches a tokenizer, or is code"
_READS = "it reads a file"
REFUSED_ARGUMENTS: Mapping[str, str] = {
    "trust_remote_code": _LOADS,
    "is_hf_model": _LOADS,
    "enable_vllm": _LOADS,
    "tokenization": _TOKENIZER,
    "tokenizer": _TOKENIZER,
    "return_processor": _TOKENIZER,
    "processor_config": _TOKENIZER,
    "runtime_env": "it installs packages",
    "stats_export_path": _FILES,
    "original_data_save_path": _FILES,
    "work_dir": _FILES,
    "save_dir": _FILES,
    "output_dir": _FILES,
    "score_file": _CODE,
    "seed_file": _READS,
    "tokenizer_model": _READS,
    "calibration_json_path": _READS,
}
"""Arguments with which an operator runs only where `allowed_operators` names it."""

_SPLITS = ("space", "punctuation", "character")
"""Values of `tokenization` that need no tokenizer."""

JOINING = ("Grouper", "Aggregator", "Pipeline")
"""Bases of operators whose rows are no longer those that came."""

_WAY_OUT = "name it in service.data_juicer.allowed_operators to run it"


def refusal(name: str, args: Mapping[str, Any], *, allowed: Collection[str]) -> str:
    """Return why an operator is not run, and the way out.

    Empty if it is run.

    Args:
        name: of the operator.
        args: its arguments.
        allowed: operators that may do anything.
    """
    if name in allowed:
        return ""
    if name.endswith(tuple(f"_{base.lower()}" for base in JOINING)):
        return f"{name} joins rows: what it returns is none of the rows that came"
    if name not in ALLOWED:
        near = get_close_matches(name, ALLOWED, n=1, cutoff=0.85)
        hint = f"did you mean {near[0]}? If not, " if near else ""
        return f"the operator {name} is refused: {REFUSED.get(name, _UNCHECKED)}; {hint}{_WAY_OUT}"
    for argument, value in _named(args):
        why = REFUSED_ARGUMENTS.get(argument)
        if why and value and not (argument == "tokenization" and value in _SPLITS):
            return f"the argument {argument} of the operator {name} is refused: {why}; {_WAY_OUT}"
    return ""


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield all arguments, also those of arguments."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield str(name), inner
            yield from _named(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _named(inner)


class Refused(Exception):
    """A request that the server does not serve.

    Args:
        status: of the HTTP answer.
        message: why.
        kind: one word for programs.
    """

    def __init__(self, status: int, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind
