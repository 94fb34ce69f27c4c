"""What is known of other people's code: which callables a rule is about, by dotted name.

``name`` is that callable and, if it is a class, everything that its objects do (``httpx.Client().post``).
``name.*`` is everything under it, and ``module.{a,b}`` is two names. The longest name that fits decides, so
that a line in ``INNOCENT`` can take something out. ``()`` stands for a call.
"""

from __future__ import annotations

import re
from functools import cache


def names_in(text: str) -> frozenset[str]:
    """The names that a text of the table lists."""
    found: list[str] = []
    for word in text.split():
        module, brace, listed = word.removesuffix("}").partition(".{")
        found += [f"{module}.{name}" for name in listed.split(",")] if brace else [word]
    return frozenset(found)


GUILTY: dict[str, str] = {
    "HF101": """
        subprocess.* subprocess.{run,call,check_call,check_output,getoutput,getstatusoutput,Popen}
        os.{system,popen,startfile,fork,forkpty,kill,killpg,abort,_exit,nice,execl,execle,execlp}
        os.{execlpe,execv,execve,execvp,execvpe,spawnl,spawnle,spawnlp,spawnlpe,spawnv,spawnve}
        os.{spawnvp,spawnvpe,posix_spawn,posix_spawnp,wait,waitpid,setuid,setgid,chroot}
        asyncio.{create_subprocess_exec,create_subprocess_shell}
        asyncio.loop.{subprocess_exec,subprocess_shell} anyio.{run_process,open_process} trio.run_process
        pty.{spawn,fork} pexpect.* sh.* plumbum.* invoke.{run,Context} psutil.{Process,Popen}
        signal.{raise_signal,pthread_kill} webbrowser.* pyautogui.*
        """,
    "HF102": """
        os.{remove,unlink,rename,renames,replace,rmdir,removedirs,mkdir,makedirs,link,symlink,chmod}
        os.{chown,lchown,lchmod,truncate,ftruncate,utime,mkfifo,mknod,write,pwrite,writev,sendfile}
        os.{fchmod,fchown,setxattr,removexattr,chflags,chdir,fchdir,umask,copy_file_range} shutil.*
        shutil.{copy,copy2,copyfile,copytree,copymode,copystat,copyfileobj,move,rmtree,chown}
        shutil.{make_archive,unpack_archive}
        pathlib.Path().{write_text,write_bytes,unlink,mkdir,rmdir,rename,replace,touch,chmod,lchmod}
        pathlib.Path().{symlink_to,hardlink_to,copy,copy_into,move,move_into} tempfile.*
        tempfile.{mkstemp,mkdtemp,NamedTemporaryFile,TemporaryFile,TemporaryDirectory}
        tempfile.{SpooledTemporaryFile} shelve.open dbm.* aiofiles.os.* distutils.file_util.*
        distutils.dir_util.* send2trash.*
        tarfile.TarFile().{add,addfile,extract,extractall}
        zipfile.ZipFile().{write,writestr,extract,extractall} numpy.{save,savez,savez_compressed,savetxt}
        joblib.dump torch.save pandas.DataFrame().{to_csv,to_json,to_excel,to_parquet,to_pickle,to_feather}
        """,
    "HF103": """
        socket.{socket,create_connection,create_server,socketpair,fromfd,getaddrinfo,gethostbyname}
        socket.{gethostbyname_ex,gethostbyaddr,getnameinfo} socketserver.*
        ssl.{wrap_socket,SSLSocket,get_server_certificate} select.* selectors.*
        requests.{get,post,put,patch,delete,head,options,request,Session,session} requests.sessions.*
        requests.api.* requests.adapters.* requests_oauthlib.* requests_html.* requests_futures.*
        requests_toolbelt.* httpx.{get,post,put,patch,delete,head,options,request,stream,Client,AsyncClient}
        httpx.{HTTPTransport,AsyncHTTPTransport} aiohttp.{ClientSession,request,TCPConnector,UnixConnector}
        aiohttp.client.* urllib.request.* urllib.request.{urlopen,urlretrieve} urllib2.* urllib.urlopen
        urllib.robotparser.*
        urllib3.{request,PoolManager,HTTPConnectionPool,HTTPSConnectionPool,ProxyManager}
        urllib3.{connection_from_url} urllib3.connectionpool.* urllib3.poolmanager.*
        http.client.{HTTPConnection,HTTPSConnection} http.server.* wsgiref.simple_server.* httplib2.*
        pycurl.* niquests.* curl_cffi.* treq.* primp.* ftplib.* telnetlib.* telnetlib3.* nntplib.*
        xmlrpc.client.* xmlrpc.server.* paramiko.* asyncssh.* fabric.* pysftp.* scp.* netmiko.* aioftp.*
        websocket.* websockets.* grpc.* zmq.* nanomsg.* scapy.* dns.resolver.* ping3.*
        asyncio.{open_connection,start_server,open_unix_connection,start_unix_server}
        asyncio.loop.{create_connection,create_server,create_datagram_endpoint}
        asyncio.loop.{create_unix_connection,sock_connect,sock_sendall,sock_recv,getaddrinfo}
        asyncio.loop.{sendfile} anyio.{connect_tcp,connect_unix,create_tcp_listener,getaddrinfo}
        trio.open_tcp_stream selenium.* playwright.* pyppeteer.* mechanize.* scrapy.* robobrowser.* gql.*
        zeep.* suds.* feedparser.parse duckduckgo_search.* ddgs.* tavily.* serpapi.* wikipedia.* newspaper.*
        """,
    "HF104": """
        smtplib.* imaplib.* poplib.* aiosmtplib.* aioimaplib.* imapclient.* yagmail.* sendgrid.* mailchimp.*
        mailchimp_transactional.* mailjet_rest.* postmarker.* resend.* redmail.* envelopes.* exchangelib.*
        django.core.mail.* flask_mail.* fastapi_mail.* imap_tools.*
        """,
    "HF105": """
        openai.* anthropic.* google.generativeai.* google.genai.* mistralai.* cohere.* litellm.* ollama.*
        groq.* together.* replicate.* fireworks.* cerebras.* ai21.* aleph_alpha_client.* vertexai.*
        xai_sdk.* huggingface_hub.* transformers.pipeline llama_cpp.* gpt4all.* vllm.* instructor.* dspy.*
        zhipuai.* dashscope.* deepseek.* portkey_ai.* voyageai.* elevenlabs.* assemblyai.* deepgram.*
        langchain_openai.* langchain_anthropic.* langchain_google_genai.* langchain_google_vertexai.*
        langchain_mistralai.* langchain_cohere.* langchain_ollama.* langchain_groq.* langchain_aws.*
        langchain_community.* langchain.chat_models.* langchain.llms.* langchain.agents.* llama_index.llms.*
        pydantic_ai.* smolagents.* autogen.* crewai.*
        """,
    "HF106": """
        boto3.* boto.* botocore.* aioboto3.* aiobotocore.* google.cloud.* google.auth.* azure.* msgraph.*
        kubernetes.* kubernetes_asyncio.* kr8s.* lightkube.* docker.* aiodocker.* podman.* oci.* hcloud.*
        digitalocean.* pydo.* linode_api4.* openstack.* libcloud.* s3fs.* gcsfs.* adlfs.* fsspec.*
        smart_open.* minio.* b2sdk.* cloudflare.* heroku3.* firebase_admin.* supabase.* pulumi.*
        python_terraform.* ansible.* hvac.* consul.* dropbox.* pydrive2.* databricks.* snowflake.*
        """,
    "HF107": """
        sqlite3.{connect,Connection,Cursor} aiosqlite.* sqlite_utils.* apsw.* psycopg.* psycopg2.*
        psycopg_pool.* asyncpg.* pg8000.* aiopg.* pgvector.* pymysql.* MySQLdb.* mysql.* mysqlclient.*
        aiomysql.* asyncmy.* mariadb.* sqlalchemy.{create_engine,create_async_engine,Engine,Connection}
        sqlalchemy.engine.* sqlalchemy.orm.{Session,sessionmaker,scoped_session,create_session}
        sqlalchemy.ext.asyncio.* sqlmodel.{Session,create_engine} peewee.* tortoise.* pony.* ormar.*
        edgedb.* gel.* prisma.* redis.* aioredis.* valkey.* pymemcache.* memcache.* pylibmc.* coredis.*
        diskcache.* pymongo.* motor.* mongoengine.* beanie.* cassandra.* elasticsearch.* opensearchpy.*
        neo4j.* py2neo.* duckdb.* clickhouse_driver.* clickhouse_connect.* influxdb.* influxdb_client.*
        pyodbc.* aioodbc.* pymssql.* cx_Oracle.* oracledb.* ibm_db.* fdb.* firebird.* couchdb.* arango.*
        rethinkdb.* plyvel.* lmdb.* chromadb.* pinecone.* weaviate.* qdrant_client.* pymilvus.* lancedb.*
        faiss.write_index tinydb.* pandas.{read_sql,read_sql_query,read_sql_table} pandas.DataFrame().to_sql
        django.db.connection.* django.db.transaction.*
        """,
    "HF108": """
        github.* github3.* ghapi.* gidgethub.* gitlab.* git.* pygit2.* dulwich.* bitbucket.* atlassian.*
        jira.* slack_sdk.* slack.* slackclient.* slack_bolt.* discord.* telegram.* telebot.* aiogram.*
        telethon.* twilio.* vonage.* nexmo.* messagebird.* plivo.* pushover.* pusher.* apprise.* onesignal.*
        pymsteams.* stripe.* braintree.* paypalrestsdk.* paypalhttp.* adyen.* Adyen.* mollie.* razorpay.*
        plaid.* coinbase.* ccxt.* web3.* ib_insync.* robin_stocks.* binance.* xrpl.* gocardless_pro.*
        notion_client.* trello.* asana.* todoist_api_python.* pyairtable.* airtable.* simple_salesforce.*
        hubspot.* zenpy.* intercom.* pipedrive.* shopify.* woocommerce.* zendesk.* googleapiclient.*
        gspread.* O365.* msal.* office365.* tweepy.* praw.* asyncpraw.* atproto.* mastodon.* instagrapi.*
        docusign_esign.* pagerduty.* sentry_sdk.capture_message pika.* aio_pika.* kombu.* kafka.* aiokafka.*
        confluent_kafka.* nats.* paho.* aiomqtt.* pulsar.* stomp.* celery.* rq.* dramatiq.* huey.* arq.*
        mcp.* fastmcp.* composio.* arcadepy.* zapier.* e2b.* e2b_code_interpreter.* browser_use.*
        """,
    "HF109": """
        exec eval compile __import__ execfile importlib.{import_module,reload} importlib.util.*
        importlib.machinery.* runpy.* code.{interact,InteractiveConsole} codeop.*
        ctypes.{CDLL,PyDLL,WinDLL,OleDLL} ctypes.cdll.* ctypes.windll.* ctypes.pythonapi.* cffi.* imp.*
        pip.main pip._internal.main pkgutil.find_loader types.{FunctionType,CodeType}
        sys.{settrace,setprofile} IPython.{embed,start_ipython,get_ipython} nbclient.*
        """,
    "HF110": """
        threading.{Thread,Timer} threading.* _thread.* multiprocessing.* billiard.*
        concurrent.futures.{ThreadPoolExecutor,ProcessPoolExecutor} concurrent.futures.thread.*
        concurrent.futures.process.* concurrent.interpreters.* asyncio.{to_thread,run_coroutine_threadsafe}
        asyncio.loop.run_in_executor anyio.to_thread.* anyio.to_process.* anyio.from_thread.*
        trio.to_thread.* asgiref.sync.* joblib.{Parallel,delayed} dask.* ray.* gevent.* eventlet.* sched.*
        apscheduler.* atexit.register signal.{signal,alarm,setitimer}
        """,
    "HF112": """
        holdfast.Runtime().{run,run_sync,start,start_sync,resume,resume_sync,signal,cancel,retry}
        holdfast.Runtime().{pause,unpause,release,decide,fork,worker,close}
        holdfast.Runtime().approvals.{approve,deny} holdfast.Runtime().effects.resolve
        holdfast.Runtime().gateway.attempt holdfast.run
        """,
    "HF201": """
        time.{time,time_ns,monotonic,monotonic_ns,perf_counter,perf_counter_ns,process_time}
        time.{process_time_ns,thread_time,thread_time_ns,clock_gettime,clock_gettime_ns,localtime}
        time.{gmtime,ctime,asctime,strftime} datetime.datetime.{now,utcnow,today} datetime.date.today
        asyncio.loop.time trio.current_time anyio.current_time os.times pandas.Timestamp.{now,today,utcnow}
        pendulum.{now,today,tomorrow,yesterday} arrow.{now,utcnow} whenever.Instant.now
        django.utils.timezone.{now,localtime} timeit.* email.utils.{localtime,make_msgid}
        """,
    "HF202": """
        random.* random.{random,randint,choice,choices,sample,shuffle,uniform,randrange,getrandbits,gauss}
        random.{randbytes,seed,Random,SystemRandom} uuid.{uuid1,uuid4,uuid6,uuid7,getnode} secrets.*
        secrets.{token_hex,token_urlsafe,token_bytes,choice,randbelow,randbits} os.{urandom,getrandom}
        ssl.RAND_bytes numpy.random.* numpy.random.{rand,randn,default_rng}
        torch.{rand,randn,randint,manual_seed} faker.* shortuuid.* ulid.* nanoid.* ksuid.* cuid.* cuid2.*
        uuid6.* uuid7.* bson.ObjectId Crypto.Random.* nacl.utils.random
        """,
    "HF203": """
        os.{getenv,getenvb,putenv,unsetenv,getpid,getppid,getcwd,getcwdb,getlogin,getuid,geteuid}
        os.{getgid,uname,cpu_count,getloadavg,get_terminal_size,sched_getaffinity,process_cpu_count}
        platform.* socket.{gethostname,getfqdn} getpass.getuser pwd.* grp.* pathlib.Path.{cwd,home}
        locale.{getlocale,getdefaultlocale} psutil.{cpu_percent,virtual_memory,disk_usage,pids,process_iter}
        shutil.{which,disk_usage,get_terminal_size} dotenv.* decouple.config environs.Env resource.getrusage
        threading.{get_ident,get_native_id} gc.get_objects importlib.metadata.version
        """,
    "HF204": """
        asyncio.{sleep,wait_for,wait,timeout,timeout_at,as_completed} time.{sleep}
        asyncio.loop.{call_later,call_at,run_until_complete} async_timeout.*
        anyio.{sleep,sleep_until,sleep_forever,move_on_after,fail_after}
        trio.{sleep,sleep_until,move_on_after,fail_after} tenacity.* backoff.* retrying.* stamina.*
        threading.Event().wait threading.Condition().wait signal.{pause,sigwait}
        """,
    "HF206": """
        os.{listdir,scandir,walk,fwalk,stat,lstat,fstat,access,readlink,read,pread,getxattr,statvfs}
        os.path.{exists,lexists,isfile,isdir,islink,ismount,getsize,getmtime,getctime,getatime}
        os.path.{samefile,realpath,abspath,expanduser,expandvars}
        pathlib.Path().{read_text,read_bytes,exists,is_file,is_dir,is_symlink,stat,lstat,iterdir}
        pathlib.Path().{glob,rglob,walk,readlink,resolve,absolute,expanduser,samefile,owner,group}
        glob.{glob,iglob} linecache.* fileinput.* filecmp.* input getpass.getpass importlib.resources.*
        pkgutil.get_data mmap.mmap tokenize.open configparser.ConfigParser().read
        tarfile.{TarFile,is_tarfile} zipfile.{ZipFile,is_zipfile} zipimport.*
        numpy.{load,loadtxt,genfromtxt,fromfile,memmap} joblib.load torch.load
        pandas.{read_csv,read_json,read_excel,read_parquet,read_pickle,read_table,read_feather}
        pandas.{read_html,read_xml} polars.{read_csv,scan_csv} PIL.Image.open cv2.imread
        click.{prompt,confirm,edit} typer.{prompt,confirm} questionary.* prompt_toolkit.prompt rich.prompt.*
        """,
}

INNOCENT = """
    subprocess.{CompletedProcess,list2cmdline,TimeoutExpired,STARTUPINFO}
    shutil.{get_archive_formats,get_unpack_formats,ignore_patterns} tempfile.{gettempdir,gettempprefix}
    pathlib.Path().*
    socket.{timeout,error,gaierror,herror,inet_aton,inet_ntoa,htons,inet_pton,inet_ntop,ntohs}
    socket.{htonl,ntohl} urllib.request.{Request,quote,unquote,pathname2url,url2pathname}
    google.auth.exceptions.* botocore.exceptions.* botocore.config.* azure.core.exceptions.*
    kubernetes.client.rest.ApiException docker.errors.* docker.types.* grpc.{StatusCode,RpcError}
    websockets.exceptions.* paramiko.ssh_exception.* openai.types.* anthropic.types.* google.genai.types.*
    ollama.Message openai.NOT_GIVEN pydantic_ai.messages.* pydantic_ai.exceptions.* pydantic_ai.RunContext
    mcp.types.* huggingface_hub.utils.* litellm.token_counter psycopg.sql.* psycopg2.sql.* psycopg.rows.*
    psycopg.types.* psycopg.errors.* psycopg2.errors.* psycopg2.extensions.quote_ident
    psycopg.conninfo.make_conninfo pymysql.err.* pymysql.converters.* redis.exceptions.* pymongo.errors.*
    asyncpg.exceptions.* bson.* peewee.fn.* elasticsearch.exceptions.* elasticsearch.dsl.* stripe.error.*
    slack_sdk.errors.* slack_sdk.models.* twilio.base.exceptions.* discord.{Embed,Color,Intents} git.exc.*
    github.GithubException github.Auth.* jira.exceptions.* telegram.constants.*
    web3.Web3.{to_wei,from_wei,keccak,to_checksum_address} celery.exceptions.* celery.utils.* kafka.errors.*
    pika.BasicProperties pika.exceptions.* ctypes.{sizeof,Structure}
    threading.{Lock,RLock,local,current_thread,main_thread,Event,Condition,Semaphore}
    threading.{BoundedSemaphore,Barrier,enumerate,active_count} threading.Lock().* threading.RLock().*
    multiprocessing.{cpu_count,current_process} select.error asgiref.sync.iscoroutinefunction
    random.Random().* secrets.compare_digest platform.python_version_tuple
    tenacity.{stop_after_attempt,retry_if_exception_type,wait_none} dotenv.main.* linecache.clearcache
    django.core.mail.EmailMessage sendgrid.helpers.mail.* azure.identity.*
    """

SAME: dict[str, str] = {
    "pathlib.PosixPath": "pathlib.Path",
    "pathlib.WindowsPath": "pathlib.Path",
    "anyio.Path": "pathlib.Path",
    "trio.Path": "pathlib.Path",
    "aiopath.AsyncPath": "pathlib.Path",
    "aiopath.Path": "pathlib.Path",
    "upath.UPath": "pathlib.Path",
    "pathlib.Path.cwd()": "pathlib.Path()",
    "pathlib.Path.home()": "pathlib.Path()",
    "asyncio.get_running_loop()": "asyncio.loop",
    "asyncio.get_event_loop()": "asyncio.loop",
    "asyncio.new_event_loop()": "asyncio.loop",
    "asyncio.AbstractEventLoop()": "asyncio.loop",
    "asyncio.subprocess": "asyncio",
    "asyncio.tasks": "asyncio",
    "asyncio.timeouts": "asyncio",
    "asyncio.streams": "asyncio",
    "asyncio.threads": "asyncio",
    "asyncio.events": "asyncio",
    "io.open": "open",
    "_io.open": "open",
    "os.fdopen": "open",
    "posix": "os",
    "nt": "os",
    "posixpath": "os.path",
    "ntpath": "os.path",
    "importlib.__import__": "__import__",
    "_random": "random",
    "tarfile.open()": "tarfile.TarFile()",
    "tarfile.TarFile.open()": "tarfile.TarFile()",
    "configparser.RawConfigParser()": "configparser.ConfigParser()",
    "pandas.read_csv()": "pandas.DataFrame()",
    "pandas.read_json()": "pandas.DataFrame()",
    "pandas.read_excel()": "pandas.DataFrame()",
    "pandas.read_parquet()": "pandas.DataFrame()",
    "holdfast.runtime": "holdfast",
    "holdfast.runtime.runtime": "holdfast",
    "holdfast.runtime.context": "holdfast",
    "holdfast.runtime.sync": "holdfast",
    "holdfast.runtime.guard": "holdfast",
    "holdfast.runtime.simple": "holdfast",
    "holdfast.SyncContext": "holdfast.Context",
    "holdfast.gateway.Gateway": "holdfast.Gateway",
}
"""Other names of the same thing."""

OPENERS: dict[str, int] = {
    "open": 1,
    "codecs.open": 1,
    "gzip.open": 1,
    "bz2.open": 1,
    "lzma.open": 1,
    "gzip.GzipFile": 1,
    "bz2.BZ2File": 1,
    "lzma.LZMAFile": 1,
    "tarfile.open": 1,
    "tarfile.TarFile": 1,
    "tarfile.TarFile.open": 1,
    "zipfile.ZipFile": 1,
    "aiofiles.open": 1,
    "anyio.open_file": 1,
    "trio.open_file": 1,
    "wave.open": 1,
    "io.FileIO": 1,
    "os.open": 1,
    "pathlib.Path().open": 0,
}
"""What opens files, and which argument is the mode."""

SEEDED = frozenset(
    (
        "random.Random",
        "numpy.random.default_rng",
        "numpy.random.RandomState",
        "numpy.random.Generator",
        "numpy.random.SeedSequence",
    )
)
"""Innocent with a seed; without one, chance."""

NEEDS: dict[str, int] = {
    "time.gmtime": 1,
    "time.localtime": 1,
    "time.ctime": 1,
    "time.asctime": 1,
    "time.strftime": 2,
}
"""Reads the clock only if it is given fewer arguments."""

DATA: dict[str, str] = {
    "os.environ": "HF203",
    "os.environb": "HF203",
    "sys.argv": "HF203",
    "sys.stdin": "HF206",
    "holdfast.Context().attempt": "HF205",
}
"""What is read without a call; the attempt counts only where something depends on it."""

APPLIERS = frozenset(
    (
        "map",
        "filter",
        "sorted",
        "functools.reduce",
        "itertools.starmap",
        "asyncio.to_thread",
        "asyncio.loop.run_in_executor",
        "anyio.to_thread.run_sync",
        "concurrent.futures.ThreadPoolExecutor().submit",
        "concurrent.futures.ThreadPoolExecutor().map",
    )
)
"""What calls its arguments, classes among them."""

HARMLESS = frozenset(
    (
        "isinstance",
        "issubclass",
        "typing.cast",
        "callable",
        "type",
        "repr",
        "print",
        "typing.get_type_hints",
        "id",
    )
)
"""What only looks at its arguments."""

QUIET = frozenset(
    (
        "close",
        "aclose",
        "is_closed",
        "closed",
        "build_request",
        "disconnect",
        "dispose",
        "getvalue",
        "fileno",
        "__enter__",
        "__exit__",
        "__init__",
        "is_alive",
        "settimeout",
        "setsockopt",
        "getsockname",
    )
)
"""Methods of clients that do nothing to anybody."""

MAKERS = names_in(
    """
    connect client resource session create_engine create_async_engine cursor begin begin_nested
    create_pool connection create_connection open_connection sessionmaker async_sessionmaker
    scoped_session service build acquire from_url from_env from_connection_string get_client
    get_connection transaction pipeline pubsub bucket blob get_bucket get_blob table queue topic
    get_database get_collection get_db db collection document get_repo get_user get_issue get_pull
    get_organization get_channel open_sftp get_transport open_session create_client async_client
    get_service get_async_client channel basic_client get_default_client server with_options
    with_raw_response bind configure create_task_client invoke_shell dup accept makefile driver launch
    new_page new_context chromium firefox webkit start get_conn getconn Pool pool AsyncConnection
    """
)
"""Words that make another client of a client, in modules that a rule knows."""


@cache
def builtin_table() -> dict[str, str | None]:
    """Names and their rules; what is innocent has none."""
    table: dict[str, str | None] = {}
    for rule, text in GUILTY.items():
        table.update(dict.fromkeys(names_in(text), rule))
    table.update(dict.fromkeys(names_in(INNOCENT)))
    return table


def same(name: str) -> str:
    """A name as the tables have it."""
    end = len(name)
    while end > 0:
        begins, rest = name[:end], name[end:]
        for key, kept in ((begins, rest), (begins.removesuffix("()"), f"(){rest}")):
            known = SAME.get(key)
            if known is not None and (key == begins or begins.endswith("()")):
                return same(known + kept)
        end = name.rfind(".", 0, end)
    return name.removeprefix("builtins.")


UNBOUND = re.compile(r"(\.[A-Z]\w*)\.(?=[a-z])")


class Known:
    """The tables, with what packs added to them."""

    def __init__(self, added: dict[str, str] | None = None) -> None:
        self.table = {**builtin_table(), **(added or {})}
        self._found: dict[str, str | None] = {}
        self._acting = {
            name[:end]
            for name, rule in self.table.items()
            if rule is not None and rule.startswith("HF10")
            for end in (at for at, char in enumerate(name) if char == ".")
        }

    def rule(self, name: str) -> str | None:
        """The rule that a callable of this name is about."""
        if name not in self._found:
            self._found[name] = self._look(name)
        return self._found[name]

    def exact(self, name: str) -> bool:
        """Whether this very name is in the table, with a rule."""
        return self.table.get(name) is not None

    def any_under(self, name: str) -> str | None:
        """A rule that something under this name is about: of a client its own, of a module any."""
        if "()" in name:
            return self.rule(f"{name}.any")
        return "HF109" if name in self._acting else None

    def _look(self, name: str) -> str | None:
        last = name.rpartition(".")[2].removesuffix("()")
        if last.endswith(("Error", "Exception", "Warning")) or (last in QUIET and "()" in name):
            return None
        if name in self.table:
            return self.table[name]
        end = name.rfind(".")
        while end > 0:
            for key in (f"{name[:end]}.*", name[:end].removesuffix("()")):
                # A class stands for what its objects do; a function only for itself.
                if key in self.table and (key.endswith("*") or name[:end].endswith("()")):
                    return self.table[key]
            end = name.rfind(".", 0, end)
        # A method that is taken from its class: Path.unlink(path).
        bound = UNBOUND.sub(r"\1().", name, count=1)
        return self._look(bound) if bound != name else None
