# The training image: the wheels of dist/<pin>-<target>, what they require, and nothing to build with.
#
# docker/train.sh makes it. Its context, put together by castoff/container, is that folder and this one; the labels
# come from the folder's manifest.json. Each step checks the wheels that it installs against the manifest.
ARG BASE=docker.io/library/debian:12.12-slim

FROM ${BASE} AS python
RUN --mount=type=bind,target=/context --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    /context/apt-install.sh /context/train.packages

# What installs and describes. It is lent to the last stage, and stays behind.
FROM python AS tools
RUN --mount=type=bind,target=/context --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    /context/apt-install.sh /context/tools.packages
RUN --mount=type=bind,target=/context --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    if [ -f /run/secrets/network ]; then . /run/secrets/network; fi; \
    python3.11 -m venv /opt/tools \
    && /opt/tools/bin/pip install --require-hashes --only-binary=:all: --no-cache-dir --no-input \
       --disable-pip-version-check --quiet --requirement /context/tools.lock

FROM python AS train
ARG DEVICE=CPU
# "leave-out" makes an image from a CUDA build without the packages for GPUs. It wants them mounted when it runs.
ARG CUDA_PACKAGES=install
# hadolint ignore=DL3059
RUN --mount=type=bind,target=/context --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    --mount=type=secret,id=network --mount=type=secret,id=ca.crt \
    /opt/tools/bin/python /context/install.py dependencies /opt/castoff --cuda "${CUDA_PACKAGES}"
# hadolint ignore=DL3059
RUN --mount=type=bind,target=/context --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    /opt/tools/bin/python /context/install.py torch /opt/castoff
# hadolint ignore=DL3059
RUN --mount=type=bind,target=/context --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    /opt/tools/bin/python /context/install.py torch_xla /opt/castoff
# hadolint ignore=DL3059
RUN --mount=type=bind,target=/context --mount=type=bind,from=tools,source=/opt/tools,target=/opt/tools \
    /opt/tools/bin/python /context/install.py check /opt/castoff --cuda "${CUDA_PACKAGES}" \
    && /opt/tools/bin/python /context/sbom.py /opt/castoff /usr/share/castoff/sbom.cdx.json \
    && install -m 644 /context/dist/manifest.json /context/dist/constraints.txt /usr/share/castoff/ \
    && install -m 755 /context/entrypoint.sh /usr/local/bin/castoff \
    && useradd --uid 10001 --no-create-home --home-dir /cache --shell /usr/sbin/nologin castoff \
    && install -d -o 10001 -g 10001 -m 1777 /cache
# HOME and LOGNAME: a user who is given as a number has neither. LD_PRELOAD: tracing makes many small objects, for which
# glibc's allocator is slower.
ENV LANG=C.UTF-8 \
    LD_PRELOAD=libtcmalloc_minimal.so.4 \
    PATH=/opt/castoff/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CASTOFF_CACHE=/cache \
    CASTOFF_HEARTBEAT=/cache/heartbeat \
    CASTOFF_HEARTBEAT_SECONDS=1800 \
    HOME=/cache \
    LOGNAME=castoff \
    TMPDIR=/cache/tmp \
    PJRT_DEVICE=${DEVICE} \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor \
    XDG_CACHE_HOME=/cache \
    XLA_PERSISTENT_CACHE_PATH=/cache/xla
USER 10001:10001
VOLUME /cache
WORKDIR /cache
HEALTHCHECK --interval=60s --timeout=10s --start-period=60s --retries=3 CMD ["castoff", "health"]
ENTRYPOINT ["/usr/local/bin/castoff"]
CMD ["--help"]
