"""The step whose page docs/audit.md shows: a small Llama in bfloat16, with AdamW on float32 copies of its weights."""

from __future__ import annotations

from audited_models import step_of

step = step_of("Llama", "bf16", topics=False)
