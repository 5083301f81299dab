# The image that builds and tests the CPU wheels. Stages: build (compiler), test (no compiler), dev (shell).
#   docker build -f docker/cpu.Dockerfile --target build -t quantfarm-cpu-build .
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS python
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates git \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src

FROM python AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev \
    && rm -rf /var/lib/apt/lists/*
COPY . /src
RUN python3 noxfile.py -s build

FROM python AS test
COPY --from=build /src/dist /src/dist
COPY hardware-tests /src/hardware-tests
COPY ci /src/ci

FROM build AS dev
ENV PS1="quantfarm cpu \\w \\$ "
CMD ["bash"]
