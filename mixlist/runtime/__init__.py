"""Run models with ONNX Runtime: sessions here and in other processes, providers' profiles, and the data of runs.

All sessions have the methods of ``session.Session``; make one with
* ``local_session.LocalSession``: in this process, for models that are trusted (training, trials in a worker);
* ``subprocess_session.SubprocessSession``: in a ``SessionProcess`` that may crash, with the crash reported (check);
* ``timed_session.TimedSession``: in a process of its own that times the runs itself (bench, the measured cost of tune);
* ``remote_session.RemoteSession``: in every worker of an executor (check with --jobs or --scheduler).
Tasks other than runs go to the executor itself, which ``executors.open_workers`` opens: a ``ProcessPool`` or Dask.
Both kinds of processes are a ``WorkerProcess``, which runs ``worker_server`` and speaks ``pipe_protocol``.
"""
