#!/bin/bash
# Whether the part in this container is ready, by its own page; Docker's health checks run it. The image has no other
# program that could ask.
set -eu
exec 3<> /dev/tcp/127.0.0.1/9464
printf 'GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
read -r -t 3 _ code _ <&3
[ "$code" = 200 ]
