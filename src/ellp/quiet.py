"""Working without the messages and progress bars of transformers and the hub."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Without the messages and progress bars of transformers and the hub; as before afterwards."""
    logging = importlib.import_module("transformers.utils.logging")
    hub = importlib.import_module("huggingface_hub.utils")
    level, bars, hub_bars = logging.get_verbosity(), logging.is_progress_bar_enabled(), hub.are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
            (hub.disable_progress_bars if hub_bars else hub.enable_progress_bars)()
