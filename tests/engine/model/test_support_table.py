from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.engine.support_table import NEWER, PAGE, page
from tests.engine.tiny_models import TABLE, TINY


def test_every_architecture_but_the_newest_is_there() -> None:
    absent = {model_type for model_type, _ in TABLE.values() if model_type not in CONFIG_MAPPING}
    assert absent <= NEWER


@pytest.mark.slow
@pytest.mark.skipif(len(TINY) < len(TABLE), reason="an older transformers, without some models")
def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.engine.support_table"
