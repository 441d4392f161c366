"""`hora lab scaling`: speed-up and efficiency, what limits them, what to change and what that would gain.

- ``series``    weak and strong scaling as points to be measured
- ``measure``   the experiment: trials to rows and evidence
- ``evidence``  how the step of the largest job divides, from runs with and without communication and a timeline
- ``verdict``   that in words: what is waited for and what is moved
- ``computing`` what is computed, and on what
- ``show``      the tables and the words
"""
