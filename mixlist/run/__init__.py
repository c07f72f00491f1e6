"""Run models with ONNX Runtime: sessions in this process and in others, batches of data, profiles.

Every session has the methods of ``session.Session``. There are three classes:

- ``local_session.LocalSession`` runs a model in this process. It serves inside of the other processes, and in trials;
- ``remote_session.RemoteSession`` runs a model in the workers of ``executors.py``: in one process (check, bench), or
  in all workers of ``--jobs``, ``--scheduler`` and ``executor=``. ``model_files.py`` writes the model for them;
- ``segments.SegmentedSession`` runs one part of a large model after another, each in a session of its own.
  ``available_memory.py`` says whether a model needs it.

Tasks that are not runs of a session, such as trials, go to the executor itself. The processes are those of
``mixlist.worker_processes``.

Batches of data:

- ``feeds.py`` makes Batches of files, arrays, or random numbers;
- ``batch_files.py`` (arrays and ONNX test data), ``image_batches.py``: the files of ``--data``;
- ``python_function.py``: the function of ``--loader``; ``random_feeds.py``: the numbers of ``--random``;
- ``inputs.py`` converts the values of a batch to the types of the model's inputs.

About ONNX Runtime: ``provider_rounding.py`` tests whether a provider keeps the Casts that round, and
``profile_reader.py`` reads its profile.
"""
