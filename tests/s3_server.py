"""An S3 server of its own on this machine: moto's, in a process that a test may end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BUCKET = "artifacts"
SETUP = 6  # requests before the server asks who it is: what `_prepare` makes
_RIGHT = (
    '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}'
)


class S3:
    """A server with one bucket and one user who may do everything.

    Args:
        folder: for what it prints.
    """

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        log = (folder / "moto").open("wb")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(SETUP)}
        self._process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        log.close()
        self._wait()
        self.key, self.secret = self._prepare()

    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def stop(self) -> None:
        """Let it answer nothing, though its port is open."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it answer again."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            assert self._process.poll() is None and time.monotonic() < until, "moto did not start"
            time.sleep(0.05)

    def _prepare(self) -> tuple[str, str]:
        import boto3

        def client(service: str) -> Any:
            return boto3.client(
                service, endpoint_url=self.endpoint, region_name="us-east-1",
                aws_access_key_id="setup", aws_secret_access_key="setup",
            )  # fmt: skip

        client("s3").create_bucket(Bucket=BUCKET)
        iam = client("iam")
        iam.create_user(UserName="job")
        iam.put_user_policy(UserName="job", PolicyName="all", PolicyDocument=_RIGHT)
        made = iam.create_access_key(UserName="job")["AccessKey"]
        return made["AccessKeyId"], made["SecretAccessKey"]


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """A server that ends with the block."""
    server = S3(folder)
    try:
        yield server
    finally:
        server.end()
