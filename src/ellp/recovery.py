"""What a fine-tuning brought back, for the record, for a person and for the model card: functions of the record."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ellp.comparison import drop, interval, paired_drops
from ellp.markdown import code, fenced, table, text
from ellp.predict import Prepared
from ellp.tasks.task import mean

HEADING = "## Fine-tuning after compression"
UNMEASURED = re.compile(r"## Accuracy\n\n\*\*No task accuracy was measured for this model\.\*\*.*?(?=\n## |\Z)", re.S)
SECTION = re.compile(rf"{re.escape(HEADING)}\n.*?(?=\n## |\Z)", re.S)
SAYS = {
    "factors": "the factors of the compressed layers, everything else frozen",
    "all": "all parameters",
    "lora": "a LoRA of rank 16 on the dense linear layers and the head, merged into them afterwards",
}


def gains(prepared: Prepared, answers: Mapping[str, Any]) -> dict[str, Any]:
    """Scores ``before`` and ``after``, and of the ``teacher`` if there is one; what was lost and what came back.

    Every difference comes with its paired-bootstrap 95 % interval on the dev examples.
    """
    task, examples = prepared.task, prepared.examples
    names = {"before": "before", "after": "after", "teacher": "teacher_scores"}
    found: dict[str, Any] = {names[side]: task.scores(examples, given) for side, given in answers.items()}
    found |= _difference("gain", prepared, answers["after"], answers["before"])
    if "teacher" in answers:
        for side in ("before", "after"):
            found |= _difference(f"drop_{side}", prepared, answers["teacher"], answers[side])
        lost = found["drop_before"]
        found["recovered"] = found["gain"] / lost if lost > 0 else None
    return found


def _difference(name: str, prepared: Prepared, one: Any, other: Any) -> dict[str, float]:
    """How much less ``other`` scores than ``one``."""
    task, examples = prepared.task, prepared.examples
    low, high = interval(paired_drops(task, examples, one, other))
    return {
        name: drop(task, task.score(examples, one), task.score(examples, other)),
        f"{name}_low": low,
        f"{name}_high": high,
    }


def summary(record: dict[str, Any]) -> str:
    """What came back, in a few lines for a person."""
    lines = [f"{'before':8} {_shown(record['before'])}", f"{'after':8} {_shown(record['after'])}"]
    if "teacher_scores" in record:
        lines.append(f"{'teacher':8} {_shown(record['teacher_scores'])}")
        share = "" if record["recovered"] is None else f": {record['recovered']:.0%} of the drop came back"
        lines.append(
            f"drop     {_spread(record, 'drop_before')} points before, {_spread(record, 'drop_after')} after{share}"
        )
    lines.append(f"gain     {_spread(record, 'gain')} points, 95 % intervals in brackets")
    epochs = ", ".join(f"{entry['score']:.2f}" for entry in record["epochs_run"])
    lines.append(
        f"trained  {record['trained_parameters']:,} parameters ({record['train']}), {record['seconds'] / 60:.1f} min"
    )
    lines.append(f"epochs   {epochs}")
    lines.append(f"written to {record['output']}")
    return "\n".join(lines)


def _shown(scores: dict[str, float]) -> str:
    return f"{mean(scores):6.2f}  ({', '.join(f'{name} {value:.2f}' for name, value in scores.items())})"


def _spread(record: Mapping[str, Any], name: str) -> str:
    return f"{record[name]:+.2f} ({record[f'{name}_low']:+.2f} to {record[f'{name}_high']:+.2f})"


def with_section(card: str, record: Mapping[str, Any]) -> str:
    """A model card with this section, in place of an older one or of the line that nothing was measured."""
    section = recovery_section(record)
    for old in (SECTION, UNMEASURED):
        if old.search(card):
            return old.sub(lambda _: section, card, count=1)
    return f"{card.rstrip()}\n\n{section}".lstrip()


def recovery_section(record: Mapping[str, Any]) -> str:
    """What was trained on what, and the scores before and after."""
    sides = [("before", record["before"]), ("after", record["after"])]
    if "teacher_scores" in record:
        sides.append(("the dense teacher", record["teacher_scores"]))
    names = list(record["before"])
    rows = [[side, *(f"{scores[name]:.2f}" for name in names), f"{mean(scores):.2f}"] for side, scores in sides]
    heads = ["", *(text(name) for name in names), "score"]
    what = (
        f"Trained on {record['train_examples']} examples of {code(record['task'])}: {SAYS[record['train']]} "
        f"({record['trained_parameters']:,} parameters), {len(record['epochs_run'])} epochs in "
        f"{record['seconds'] / 60:.1f} minutes, the best by its dev score kept. Scores are those of "
        f"{record['dev_examples']} dev examples, which also chose the epoch; the score is the mean of the metrics."
    )
    if "gain" in record:
        what += f" The gain is {_spread(record, 'gain')} points, its 95 % interval in brackets."
    if record.get("teacher"):
        what += f" The loss also compared answers and hidden states with those of {code(record['teacher'])}."
    parts = [HEADING, what, table(heads, rows, right=len(names) + 1)]
    if record.get("command"):
        parts.append(fenced(record["command"], "console"))
    return "\n\n".join(parts) + "\n"
