"""Data sets as batches on the host.

In: a data set (built in, a folder, a toy or a hub id) and a tokenizer. Out: checked rows, their tokens, and batches
whose order depends on nothing but the seed and the step.
"""

from jaxppo.data import preferences
from jaxppo.data.batches import (
    MIN_PADDED_SIZE,
    SEQUENCE_BUCKET,
    Batch,
    PromptData,
    SupervisedData,
    bucket,
    chunks,
    length_gaps,
    packed,
    pad_left,
    padded_size,
    right_padded,
    row_order,
)
from jaxppo.data.builtin import REQUESTS_FILE, SHIPPED_DATA
from jaxppo.data.chat_template import ChatTemplate, make_chat_template
from jaxppo.data.encoding import (
    EncodedRow,
    cut_prompts,
    encode_completions,
    encode_prompts,
    encode_rows,
)
from jaxppo.data.fresh import FreshData, renamed_in_every_epoch
from jaxppo.data.overlong import (
    RowLimit,
    limits_of,
    report_left_out,
    within_limit,
    without_overlong,
)
from jaxppo.data.rows import (
    Row,
    check_same,
    check_splits,
    column_names,
    columns_of,
    generated_split,
    holds_problems,
    load_split,
    make_splits,
    missing_splits,
    read_rows,
    without_missing_splits,
)
from jaxppo.data.stop_strings import has_stop_string, stop_table
from jaxppo.data.stream import stream_of
from jaxppo.data.tokens import decode, start_ids, token_ids
from jaxppo.data.word_level import word_tokenizer, words_of_dataset

__all__ = [
    "MIN_PADDED_SIZE",
    "REQUESTS_FILE",
    "SEQUENCE_BUCKET",
    "SHIPPED_DATA",
    "Batch",
    "ChatTemplate",
    "EncodedRow",
    "FreshData",
    "PromptData",
    "Row",
    "RowLimit",
    "SupervisedData",
    "bucket",
    "check_same",
    "check_splits",
    "chunks",
    "column_names",
    "columns_of",
    "cut_prompts",
    "decode",
    "encode_completions",
    "encode_prompts",
    "encode_rows",
    "generated_split",
    "has_stop_string",
    "holds_problems",
    "length_gaps",
    "limits_of",
    "load_split",
    "make_chat_template",
    "make_splits",
    "missing_splits",
    "packed",
    "pad_left",
    "padded_size",
    "preferences",
    "read_rows",
    "renamed_in_every_epoch",
    "report_left_out",
    "right_padded",
    "row_order",
    "start_ids",
    "stop_table",
    "stream_of",
    "token_ids",
    "within_limit",
    "without_missing_splits",
    "without_overlong",
    "word_tokenizer",
    "words_of_dataset",
]
