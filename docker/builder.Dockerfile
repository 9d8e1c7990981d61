# The builder: all that ./build.sh needs, at fixed versions. castoff's tree, its caches and dist/ are mounted.
#
# ./build.sh --docker makes it and runs it. Its context is put together by castoff/container, which also gives it the
# machine's own index and certificates for the time of the build, as secrets: they do not stay.
#
# glibc: an overlay that needs more than the platform tag of the base wheels allows is refused (castoff verify), so
# the age of the image's own does not matter.
ARG BASE=docker.io/library/debian:12.12-slim

FROM ${BASE}
ENV DEBIAN_FRONTEND=noninteractive \
    LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1
RUN --mount=type=bind,target=/context --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    /context/apt-install.sh /context/builder.packages
RUN --mount=type=bind,target=/context --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi; \
    python3.11 -m venv /opt/castoff \
    && /opt/castoff/bin/pip install --require-hashes --only-binary=:all: --no-cache-dir --no-input \
       --disable-pip-version-check --quiet --requirement /context/requirements.lock \
    && git config --system --add safe.directory '*'
ENV PATH=/opt/castoff/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LABEL org.opencontainers.image.title="castoff builder" \
      org.opencontainers.image.description="Builds patched PyTorch and PyTorch/XLA wheels" \
      org.opencontainers.image.licenses="BSD-3-Clause"
USER 10001:10001
ENTRYPOINT ["/opt/castoff/bin/python", "-m", "castoff"]
