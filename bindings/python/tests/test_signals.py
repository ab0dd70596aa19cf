"""Ctrl-C while a thread waits for room."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

PROGRAM = textwrap.dedent(
    """
    import signal, threading, time
    from tollgate_rs import Gate

    # A test that a shell runs in the background inherits that the signal is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    limit = {"name": "rpd", "unit": "requests", "rule": "concurrency", "limit": 1, "ttl": "1h"}
    gate = Gate.memory([{"name": "llm", "limits": [limit]}])
    gate.acquire_sync("llm", "p7")

    def ready():
        while gate.waiting == 0:
            time.sleep(0.001)
        print("waiting", flush=True)

    threading.Thread(target=ready).start()
    try:
        gate.acquire_sync("llm", "p7", wait=3600)
    except KeyboardInterrupt:
        while gate.waiting:
            time.sleep(0.001)
        print("interrupted", gate.standing_sync("llm", "p7")[0].used, flush=True)
    """
)


def test_ctrl_c_ends_a_wait_that_then_takes_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "waiting\n"
        program.send_signal(signal.SIGINT)
        assert program.stdout.readline() == "interrupted 1\n"
        assert program.wait(60) == 0


def test_a_program_ends_while_an_ask_waits() -> None:
    program = PROGRAM.replace("threading.Thread(target=ready).start()", "").replace(
        'gate.acquire_sync("llm", "p7", wait=3600)',
        'threading.Thread(target=lambda: gate.acquire_sync("llm", "p7", wait=3600), daemon=True).start(); '
        "exec('while gate.waiting == 0: time.sleep(0.001)')",
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
