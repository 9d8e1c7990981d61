"""The marks of the tests that are held against stock wheels; the plugin beside this module says what each means."""

import pytest

fails_on_stock = pytest.mark.fails_on_stock
passes_on_stock = pytest.mark.passes_on_stock
ends_the_process_on_stock = pytest.mark.ends_the_process_on_stock
