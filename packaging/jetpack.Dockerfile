# s2chat with the CUDA backend for Jetson boards with JetPack 6, built on the board:
#   docker build -f packaging/jetpack.Dockerfile -t s2chat .
#   docker run -it --rm --runtime nvidia -v s2chat:/home/s2chat s2chat
# For a board other than an Orin: --build-arg ARCHS=72 (Xavier), 110 (Thor, with a BASE of JetPack 7).
ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0
FROM ${BASE}

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

COPY . /opt/s2chat
ARG ARCHS=87
# The build sees no GPU, hence its name; the build cache does not go into the image.
RUN S2CHAT_CUDA_ARCHS=${ARCHS} XDG_CACHE_HOME=/tmp/cache /opt/s2chat/packaging/python /opt/s2chat/packaging/setup.py \
    && rm -rf /tmp/cache

# Chats, settings and models of the container's user: a volume.
RUN useradd --create-home --groups video s2chat
USER s2chat
VOLUME /home/s2chat
ENTRYPOINT ["/opt/s2chat/.venv/bin/s2chat"]
