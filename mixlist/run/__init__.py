"""Run models with ONNX Runtime: sessions in this process and in others, batches of data, profiles.

Every session has the methods of ``session.Session``. There are three classes:
* ``local_session.LocalSession`` runs a model in this process. It serves inside of the other processes, and in trials;
* ``remote_session.RemoteSession`` runs a model in the workers of ``executors``: in one process (check, bench), or in
  all workers of ``--jobs``, ``--scheduler`` and ``executor=``;
* ``segments.SegmentedSession`` runs one part of a large model after another, each in a session of its own.

Tasks that are not runs of a session, such as trials, go to the executor itself. The processes are those of
``mixlist.worker_processes``.
"""
