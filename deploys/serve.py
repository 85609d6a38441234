"""Serve the wanted model on every host: `pyinfra INVENTORY deploys/serve.py`."""

from deploys.steps import engine, gate, models, planning, system, units

work = planning.work()

system.prepare(work)
models.fetch(work)
engine.make(work)
engine.rehearse(work)
system.protect(work)
units.write(work)
units.run(work)
gate.answer(work)
