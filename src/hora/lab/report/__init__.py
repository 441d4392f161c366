"""`hora lab report`: everything that was measured, on one page that needs nothing else.

- ``gather``    run folders, experiment folders, timelines and benchmarks, and what of them could not be read
- ``label``     short names for trials: what differs between them
- ``charts``    lines and bars, as Vega-Lite
- ``cells``     numbers as a table shows and sorts them
- ``study``, ``speed``, ``learning``, ``plans``, ``sweeps``, ``time_spent``, ``benchmarks``, ``methods``   the sections
- ``answer``    what all of it says, in a few sentences
- ``render``    the page, from the templates in ``page/``, and the plots as files; ``write`` the whole way
"""
