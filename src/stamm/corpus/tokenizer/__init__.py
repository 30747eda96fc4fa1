"""BPE tokenizers: training, tekken, encoding by two libraries, and fertility by language."""

from stamm.corpus.tokenizer.job import SUMMARY as SUMMARY
from stamm.corpus.tokenizer.job import train_tokenizer as train_tokenizer
from stamm.corpus.tokenizer.tokenizer import FILE as FILE
from stamm.corpus.tokenizer.tokenizer import SPLIT_PATTERN as SPLIT_PATTERN
from stamm.corpus.tokenizer.tokenizer import Tokenizer as Tokenizer
from stamm.corpus.tokenizer.training import train_tokenizer_on as train_tokenizer_on
