"""Programs that run on a node: Python's standard library only, Python 3.8 or newer.

Modules here import each other by full name and nothing else of gpuwright: `gpuwright.carry`
bundles a program with the modules it names.
"""
