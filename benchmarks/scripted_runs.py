"""Whole scripted runs without their folders: the same events as a real run's, thousands of them in a minute."""

from typing import Any

from harness.bench import engine_traffic
from harness.engines.scripted import ScriptedRig
from harness.facts import RunFacts
from harness.measure import reading_events, request_events
from harness.models import ResolvedModel
from harness.specs.event import Event, EvidenceEvent
from harness.specs.run import RunConfig
from harness.workload import make_request, schedule


def scripted_run(model: ResolvedModel, config: dict[str, Any]) -> tuple[RunFacts, list[Event]]:
    """What is known of the run, and its events."""
    run = RunConfig.model_validate({"name": "truth", "model": model.name, **config})
    rig = ScriptedRig(run, model)
    probe, decoder = rig.open_probe(), rig.open_engine()
    survey = probe.survey(None)
    events: list[Event] = [*decoder.kernel_reads(probe.read)]
    for repeat, point in enumerate(schedule(run)):
        request = make_request(run.workload, model, repeat, point, decoder)
        events += reading_events(probe, repeat, "before")
        events += request_events(decoder, probe, request, repeat, run.probe.every_s, None)
        events += reading_events(probe, repeat, "after")
    events.append(EvidenceEvent(evidence=decoder.explain(request, 16)))
    return RunFacts("truth", run, model.spec, rig.device, engine_traffic(run, model), decoder.report(), survey), events
