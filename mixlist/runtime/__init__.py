"""Run models with ONNX Runtime: sessions in this process and in others, batches of data, profiles.

Every session has the methods of ``session.Session``. Choose the class by the process in which the model runs:
* ``local_session.LocalSession``: this process, for models that are known to run (training, trials in a worker);
* ``guarded_session.GuardedSession``: this process, but batches with empty arrays go to another process;
* ``subprocess_session.SubprocessSession``: a ``SessionProcess`` that may crash; the crash is reported (check);
* ``timed_session.TimedSession``: a process of its own that measures the time of its runs (bench, and tune
  with ``--objective max-speed`` on CUDA);
* ``remote_session.RemoteSession``: every worker of an executor (check with --jobs or --scheduler).

Tasks that are not runs of a session go to the executor, a ``ProcessPool`` or Dask, which ``executors.open_workers``
opens. ``SessionProcess`` and ``ProcessPool`` both start ``WorkerProcess``es. A worker process executes
``worker_server.serve`` and exchanges the messages of ``pipe_protocol`` with this process.
"""
